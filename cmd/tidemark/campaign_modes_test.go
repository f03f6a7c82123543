package main

// The trials of the campaign. Each takes a seed, makes of it as many trials as it has points, and counts them.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// tally counts what was tried, by kind, and keeps what was found.
type tally struct {
	mu       sync.Mutex
	counts   map[string]uint64
	findings []string
}

func newTally() *tally { return &tally{counts: map[string]uint64{}} }

func (t *tally) add(what string, n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[what] += n
}

func (t *tally) find(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.findings = append(t.findings, fmt.Sprintf(format, args...))
}

func (t *tally) found() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.findings)
}

// trials runs the modes.
type trials struct {
	plans  []*loaded
	length int // moves of a script
	*tally
	most  int      // findings with which a seed ends
	slice bool     // as little as shows that it works
	only  *opPoint // crash at this point alone
	left  sync.WaitGroup
	slow  chan struct{} // bounds what is left behind to end by itself
}

func newTrials(length int) (*trials, error) {
	plans, err := campaignPlans()
	return &trials{plans: plans, length: length, most: maxFindings, tally: newTally(), slow: make(chan struct{}, 32)}, err
}

// enough says that there is no need to find more.
func (c *trials) enough() bool { return c.found() >= c.most }

// crashImage is the disk after a crash, with what had been acknowledged before it.
type crashImage struct {
	disk  *vfs.MemFS
	clock *simClock
	acked int // events
	move  int // of the script, under way
	plan  int
	what  string
	depth int
	lot   uint64 // decides what is done with it
}

// crashes plays the script of a seed with a crash before every file operation, with none, half or all of the unsynced data kept by
// turns. Each crash is recovered from.
func (c *trials) crashes(seed uint64) {
	s := newScript(seed, c.length)
	ref, p, err := record(s, c.plans)
	c.model(p)
	if err != nil {
		c.find("model: %v", err)
		return
	}
	disk := vfs.NewCrashableMem()
	clock := &simClock{}
	rng := rand.New(rand.NewPCG(seed, 78))
	var acked, moving, plan atomic.Int64
	images := make(chan crashImage, 4096) // enough for one move: the service must not wait for the checks while it works
	var pending sync.WaitGroup
	percents := [...]int{0, 50, 100}
	t := newTap(func(total int, at opPoint, op errorfs.Op) error {
		if c.enough() || op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpLock || c.only != nil && at != *c.only || c.slice && total%8 != 0 {
			return nil
		}
		before := int(acked.Load()) // before the image, so that it holds at least these
		percent := percents[(total+int(seed))%3]
		pending.Add(1)
		images <- crashImage{
			disk:  disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}),
			clock: (&simClock{}).at(clock), acked: before, move: int(moving.Load()), plan: int(plan.Load()),
			what: fmt.Sprintf("seed %d length %d, crash before %s, %d%% of unsynced data kept", seed, c.length, at, percent), lot: uint64(total),
		}
		return nil
	})
	var check sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		check.Go(func() {
			for im := range images {
				if c.enough() {
					pending.Done()
					continue
				}
				c.recover(s, ref, im, rand.New(rand.NewPCG(seed, 79+im.lot)))
				pending.Done()
			}
		})
	}
	w := newWorld(t.over(disk), clock, c.plans, s.workers)
	clock.wall.Store(s.wall)
	clock.mono.Store(3_600_000)
	again := newPlay(w, nil)
	again.acked = func(head int) { acked.Store(int64(head)) }
	err = again.start()
	for i, v := range s.moves {
		if err != nil || c.enough() {
			break
		}
		moving.Store(int64(i))
		if v.what == "plan" {
			plan.Store(int64(v.plan))
		}
		err = again.do(v)
		pending.Wait()
	}
	if err == nil {
		err = w.stop()
	}
	t.mu.Lock()
	close(images)
	t.mu.Unlock()
	check.Wait()
	if err != nil {
		c.find("seed %d under the camera: %v", seed, err)
	}
	c.add("scripts", 1)
}

// model adds what a play beside the model has seen.
func (c *trials) model(p *play) {
	o := p.m.ops
	c.add("requests to the model", o.Requests)
	c.add("samples to the model", o.Samples)
	c.add("requests retried, late or in conflict", o.Odd)
	c.add("samples late, duplicate or in conflict", o.Late+o.Duplicates+o.Conflicts+o.Corrected)
	for what, n := range p.did {
		c.add(what, n)
	}
	c.add("questions", uint64(p.asked.questions))
	c.add("questions answered warm", uint64(p.asked.warm))
}

// recover starts on a crashed disk and holds what is there against what was acknowledged; now and then it goes on from there, or
// crashes again in the recovery.
func (c *trials) recover(s script, ref *reference, im crashImage, rng *rand.Rand) {
	if im.depth == 0 {
		c.add("crash points", 1)
	} else {
		c.add("crashes in recovery", 1)
	}
	nest := im.depth < 3 && rng.IntN(500) == 0
	on := !nest && rng.IntN(24) == 0
	var fs vfs.FS = im.disk
	var nested []crashImage
	if nest {
		was := im.disk
		percents := [...]int{0, 50, 100}
		fs = newTap(func(total int, at opPoint, op errorfs.Op) error {
			if total%3 == im.depth%3 && op.Kind != errorfs.OpFileClose && op.Kind != errorfs.OpLock {
				next := im
				next.depth++
				next.disk = was.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percents[total/3%3], RNG: rng})
				next.what = fmt.Sprintf("%s; then before %s of the recovery", im.what, at)
				nested = append(nested, next)
			}
			return nil
		}).over(was)
	}
	if err := c.recovered(s, ref, im, fs, on, rng); err != nil {
		c.find("%s: %d acknowledged: %v", im.what, im.acked, err)
		return
	}
	for _, next := range nested {
		c.recover(s, ref, next, rng)
	}
}

// inWords writes the stored form of an event as "log dump" does, at most its first bytes.
func inWords(stored []byte) string {
	e, err := log.DecodeEvent(0, stored)
	if err != nil {
		return err.Error()
	}
	var b bytes.Buffer
	if err := log.DumpJSON(&b, e, func(log.SeriesRef) (labels.Labels, bool) { return labels.EmptyLabels(), false }); err != nil {
		return err.Error()
	}
	const enough = 300
	return string(bytes.TrimSpace(b.Bytes()[:min(b.Len(), enough)]))
}

// recovered is one recovery.
func (c *trials) recovered(s script, ref *reference, im crashImage, fs vfs.FS, on bool, rng *rand.Rand) error {
	w := newWorld(fs, im.clock, c.plans, 1+rng.IntN(4))
	w.looks = !on && rng.IntN(8) > 0
	if err := w.open(im.plan); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	head := int(w.n.events.Head())
	err := c.holds(ref, w, im.acked)
	if err == nil && on {
		return c.goOn(s, ref, im, w, head, rng)
	}
	if serr := w.stop(); err == nil && serr != nil {
		err = fmt.Errorf("stop: %w", serr)
	}
	return err
}

// holds says whether a world that was opened holds every acknowledged event, each as it was sent, and what is folded from them.
func (c *trials) holds(ref *reference, w *world, acked int) error {
	head := int(w.n.events.Head())
	if head < acked || head > len(ref.bodies) {
		return fmt.Errorf("LOST: the log ends at %d; %d events were acknowledged of %d", head, acked, len(ref.bodies))
	}
	floor := int(w.n.events.Floor())
	bodies, _, err := w.bodies(1)
	if err != nil {
		return err
	}
	for i, b := range bodies {
		if string(b) != string(ref.bodies[floor-1+i]) {
			return fmt.Errorf("event %d is not what was sent: %s instead of %s", floor+i, inWords(b), inWords(ref.bodies[floor-1+i]))
		}
	}
	want, ok := ref.said[head]
	if !ok { // between two events that one move appends, or while streams were being folded
		m := newNaive()
		for _, e := range ref.tolds[:head] {
			m.apply(e)
		}
		return w.compare(m)
	}
	ctx, cancel := context.WithTimeout(context.Background(), worldPatience)
	defer cancel()
	if err := w.backfill(ctx, 0); err != nil {
		return fmt.Errorf("backfill: %w", err)
	}
	said, err := w.sayAll()
	if err != nil {
		return err
	}
	if said != want {
		return fmt.Errorf("replayed:\n got %s\nwant %s", said, want)
	}
	return nil
}

// goOn lets the recovered service work on: its clients repeat what was under way, and the script goes on beside the model. At the
// end a fold from nothing must give the same.
func (c *trials) goOn(s script, ref *reference, im crashImage, w *world, head int, rng *rand.Rand) error {
	c.add("recoveries that went on", 1)
	p := newPlay(w, newNaive())
	p.plan = im.plan
	p.tolds = append(p.tolds, ref.tolds[:head]...)
	for _, e := range p.tolds {
		p.m.apply(e)
	}
	w.clock.pass(rng.Int64N(60_000))
	err := p.begin()
	moves := s.moves[min(im.move, len(s.moves)):]
	if err == nil {
		err = p.run(moves[:min(len(moves), 4+rng.IntN(8))])
	}
	if err == nil {
		err = p.finish()
	} else {
		_ = w.stop() // the other error says what is wrong
	}
	if err != nil {
		return fmt.Errorf("going on from event %d: %w", head, err)
	}
	return nil
}

// leave ends a world on a disk that failed. What is stuck there ends later, or never, as it would end with the process.
func (c *trials) leave(w *world) {
	if w.stopRest == nil {
		return
	}
	c.slow <- struct{}{}
	c.left.Go(func() {
		defer func() { <-c.slow }()
		_ = w.stop() // on a disk that failed anything may be wrong with it
	})
}

// faultFocus are the moves that a part of a script is chosen for, by turns of the seeds: all that write what writes and ticks do not. Chance
// alone would rarely meet them.
var faultFocus = [...]string{"", "keep", "backfill", "round", "keep", "expire", "sweep", "compact", "keep", "rebuild", "heal", "drain"}

// partWith chooses so many moves of a script, with the last move of a kind among them if it has one: late in a script there is something
// to do for it.
func partWith(s script, what string, part int, rng *rand.Rand) (from int) {
	for i := len(s.moves) - 1; i >= 0; i-- {
		if s.moves[i].what == what {
			return max(0, min(i-rng.IntN(part), len(s.moves)-part-1))
		}
	}
	return rng.IntN(len(s.moves) - part)
}

// faults plays part of the script of a seed again and again, with each operation of the disk failing once, in every way. What was
// acknowledged must be there after a crash at that moment.
func (c *trials) faults(seed uint64) {
	s := newScript(seed, c.length)
	ref, pm, err := record(s, c.plans)
	c.model(pm)
	if err != nil {
		c.find("model: %v", err)
		return
	}
	// The part: some moves in the middle, on the disk that the moves before them left.
	rng := rand.New(rand.NewPCG(seed, 80))
	part := 6
	if c.slice {
		part = 2
	}
	from := partWith(s, faultFocus[seed%uint64(len(faultFocus))], part, rng)
	disk := vfs.NewCrashableMem()
	w := newWorld(newTap(nil).over(disk), &simClock{}, c.plans, s.workers)
	w.clock.wall.Store(s.wall)
	w.clock.mono.Store(3_600_000)
	before := newPlay(w, nil)
	err = before.start()
	if err == nil {
		err = before.run(s.moves[:from])
	}
	if err != nil {
		c.find("seed %d: %v", seed, err)
		return
	}
	if err := w.stop(); err != nil {
		c.find("seed %d: stop: %v", seed, err)
		return
	}
	at := (&simClock{}).at(w.clock)
	// From here on the events are others: there is a start more.
	moves := append(append([]move{}, s.moves[from:from+part]...), move{what: "checkpoint"}, move{what: "restart", workers: 2})
	branch, err := c.branch(ref, before, disk, at, moves)
	if err != nil {
		c.find("seed %d: from move %d: %v", seed, from, err)
		return
	}
	for _, kind := range faultKinds {
		for k := 1; ; k++ {
			what := fmt.Sprintf("seed %d length %d, moves %d to %d, %s at %d", seed, c.length, from, from+part, kind.name, k)
			hit, err := c.fault(branch, before, copyDisk(disk), (&simClock{}).at(at), moves, kind, k)
			if err != nil {
				c.find("%s: %v", what, err)
			}
			if errors.Is(err, errHangs) {
				return
			}
			if c.slice {
				k += 7
			}
			if !hit || c.enough() {
				break
			}
			c.add("fault points", 1)
		}
	}
}

// branch plays moves on from where another play has stopped, beside the model, and returns what that comes to.
func (c *trials) branch(ref *reference, before *play, disk *vfs.MemFS, at *simClock, moves []move) (*reference, error) {
	p := newPlay(newWorld(newTap(nil).over(copyDisk(disk)), (&simClock{}).at(at), c.plans, 2), newNaive())
	p.ref = newReference()
	p.plan = before.plan
	for i, e := range before.tolds {
		p.m.apply(e)
		p.ref.bodies = append(p.ref.bodies, ref.bodies[i])
	}
	p.tolds = append(p.tolds, before.tolds...)
	p.ref.said[len(p.tolds)] = ref.said[len(p.tolds)]
	err := p.start()
	if err == nil {
		err = p.run(moves)
	}
	if err == nil {
		err = p.finish()
	}
	return p.ref, err
}

// faultPatience is what a part of a script may take on a disk that fails, hundreds of times what it does take.
const faultPatience = time.Minute

var errHangs = errors.New("HANGS: the service neither goes on nor gives up")

// fault plays moves on a disk of which one operation fails, and recovers. hit is whether the fault was met.
func (c *trials) fault(ref *reference, before *play, disk *vfs.MemFS, clock *simClock, moves []move, kind faultKind, k int) (hit bool, err error) {
	f, fs := newFailing(disk, kind, k)
	w := newWorld(fs, clock, c.plans, 2)
	p := newPlay(w, nil)
	p.fails, p.plan = true, before.plan
	p.tolds = append(p.tolds, before.tolds...)
	acked := len(p.tolds)
	p.acked = func(head int) { acked = head }
	ended := make(chan error, 1)
	go func() {
		err := p.start()
		if err == nil {
			err = p.run(moves)
		}
		ended <- err
	}()
	var played error
	select {
	case played = <-ended:
	case <-time.After(faultPatience):
		// Neither done nor refused. It is left as it is: what it does to the disk from here on is of no interest.
		point, hit := f.met()
		return hit, fmt.Errorf("%s: %w within %s", point, errHangs, faultPatience)
	}
	point, hit := f.met()
	f.clear()
	if w.stopRest != nil && w.n.events.Err() != nil {
		// The disk is sound again: that must not help (L4).
		if code, _ := w.write([]point1{{series: "z", ls: seriesOf("a", 0), t: clock.wall.Load(), v: 1}}); code/100 == 2 {
			return hit, fmt.Errorf("%s: ACKNOWLEDGED by a log that had failed", point)
		}
	}
	left := disk.CrashClone(vfs.CrashCloneCfg{})
	c.leave(w)
	if played != nil && !hit {
		return hit, fmt.Errorf("without a fault: %w", played)
	}
	if kind.sync && hit {
		c.add("fault points of fsync", 1)
	}
	again := newWorld(left, clock, c.plans, 3)
	if err := again.open(before.plan); err != nil {
		return hit, fmt.Errorf("%s; played: %v: start: %w", point, played, err)
	}
	err = c.holds(ref, again, acked)
	if serr := again.stop(); err == nil && serr != nil {
		err = fmt.Errorf("stop: %w", serr)
	}
	if err != nil {
		err = fmt.Errorf("%s; played: %v; %d acknowledged: %w", point, played, acked, err)
	}
	return hit, err
}

// damages does harm to files at rest, so many times, and starts on what is left. Harm is refused, or healed from the log, or of no
// account; it never changes what is said.
func (c *trials) damages(seed uint64, times int) {
	s := newScript(seed, c.length)
	ref, pm, err := record(s, c.plans)
	c.model(pm)
	if err != nil {
		c.find("model: %v", err)
		return
	}
	rng := rand.New(rand.NewPCG(seed, 81))
	disk := vfs.NewCrashableMem()
	w := newWorld(newTap(nil).over(disk), &simClock{}, c.plans, s.workers)
	w.clock.wall.Store(s.wall)
	w.clock.mono.Store(3_600_000)
	p := newPlay(w, nil)
	err = p.start()
	if err == nil {
		err = p.run(s.moves)
	}
	if err != nil {
		c.find("seed %d: %v", seed, err)
		return
	}
	head := len(p.tolds)
	crashed := rng.IntN(3) == 0
	noted := head // what the note beside the log tells of
	var rest *vfs.MemFS
	if crashed {
		rest = disk.CrashClone(vfs.CrashCloneCfg{})
		noted = notedHead(rest)
	}
	if err := w.stop(); err != nil {
		c.find("seed %d: stop: %v", seed, err)
		return
	}
	if !crashed {
		rest = copyDisk(disk)
	}
	if c.slice {
		times = 25
	}
	for range times {
		harmed := copyDisk(rest)
		what, err := damage(harmed, rng)
		if err != nil {
			c.find("seed %d: %v", seed, err)
			return
		}
		c.add("damaged stores", 1)
		outcome, err := c.damaged(ref, harmed, (&simClock{}).at(w.clock), p.plan, head, noted)
		if err != nil {
			c.find("seed %d length %d, crashed %v, %s: %v", seed, c.length, crashed, what, err)
		}
		c.add("damaged: "+outcome, 1)
	}
}

// notedHead is the sequence in the HEAD note of a disk.
func notedHead(disk *vfs.MemFS) int {
	b, err := readWhole(disk, worldPath+"/log/HEAD")
	if err != nil {
		return 0
	}
	var n int
	for line := range strings.Lines(string(b)) {
		_, _ = fmt.Sscanf(line, "seq %d", &n)
	}
	return n
}

// damaged starts on a disk that was harmed and says how that went. The error is a silent one.
func (c *trials) damaged(ref *reference, disk *vfs.MemFS, clock *simClock, plan, head, noted int) (string, error) {
	w := newWorld(disk, clock, c.plans, 2)
	if err := w.open(plan); err != nil {
		if w.stopRest != nil {
			c.leave(w) // it opened and could not be folded
			return "found while replaying", nil
		}
		return "refused: " + damageKind(err), nil
	}
	have := int(w.n.events.Head())
	var err error
	outcome := "healed or harmless"
	switch {
	case have < head && have >= noted && have > 0:
		// A loss of the newest second from outside cannot be told from a torn tail.
		outcome = "excepted: the tail behind the note"
		err = c.holds(ref, w, have)
	default:
		err = c.holds(ref, w, head)
	}
	if namesDamage(err) {
		outcome, err = "found when read: "+damageKind(err), nil
	}
	if serr := w.stop(); serr != nil && err == nil && !namesDamage(serr) {
		err = fmt.Errorf("stop: %w", serr)
	}
	if err != nil {
		err = fmt.Errorf("SILENT: %w", err)
	}
	return outcome, err
}

func namesDamage(err error) bool {
	var corruption *log.CorruptionError
	var short *log.ShortLogError
	return err != nil && (errors.As(err, &corruption) || errors.As(err, &short) || bucket.Damaged(err) || strings.Contains(err.Error(), "damaged"))
}

func damageKind(err error) string {
	var corruption *log.CorruptionError
	var short *log.ShortLogError
	var base *bucket.BaseError
	switch {
	case errors.As(err, &short):
		return "short log"
	case errors.As(err, &corruption):
		return "corruption"
	case errors.As(err, &base):
		return "base"
	case errors.Is(err, log.ErrNewerFormat):
		return "newer format"
	case errors.Is(err, log.ErrNotALog):
		return "not a log"
	case errors.Is(err, bucket.ErrOtherLog), errors.Is(err, bucket.ErrVersion):
		return "foreign views"
	case bucket.Damaged(err):
		return "damaged"
	case strings.Contains(err.Error(), "head note"):
		return "head note"
	}
	return "other"
}

// lates plays nothing but writes, most of them retried, late or in conflict, beside the model.
func (c *trials) lates(seed uint64, length int) {
	if c.slice {
		length /= 2
	}
	s := newLateScript(seed, length)
	w := newWorld(vfs.NewMem(), &simClock{}, c.plans, s.workers)
	w.clock.wall.Store(s.wall)
	w.clock.mono.Store(3_600_000)
	p := newPlay(w, newNaive())
	p.every = 40
	err := p.start()
	if err == nil {
		err = p.run(s.moves)
	}
	if err == nil {
		err = p.same()
	}
	if err == nil {
		err = p.finish()
	}
	c.model(p)
	if err != nil {
		c.find("late, seed %d length %d: %v", seed, length, err)
	}
}
