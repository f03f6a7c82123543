package pane

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"tidemark/log"
	"tidemark/projections"
	"tidemark/projections/plan"
)

// backfills is what the projection knows of the generations that the live fold has not taken over for good: which they are, how far
// each has come, and which events a restart would need for them.
type backfills struct {
	mu      sync.Mutex
	known   map[log.Seq]*backfill
	live    map[uint64]struct{} // the generations that the live fold has taken over, and that have streams in the plan
	changed projections.Signal  // a plan was put in force
}

// backfill is one generation until the checkpoints of the live fold hold it.
type backfill struct {
	gen     generation
	durable log.Seq // the events up to here are in its state on disk, whatever a crash takes
	written log.Seq // the same, but for a crash

	handed bool // the live fold has taken it over
	saved  [Shards]bool
	left   int // shards that no checkpoint of the live fold holds yet

	progress Backfill
}

// Backfill describes a generation that is folded in the background.
type Backfill struct {
	Generation log.Seq // the plan event that added its streams
	Streams    []plan.StreamID
	From       log.Seq       // the first event that it folds
	Seq        log.Seq       // the last event folded
	Target     log.Seq       // the event up to which it must be folded, as of now
	Left       time.Duration // estimate of the time until then; negative: unknown
	CatchingUp bool          // what was there when it began is folded, and the rest is not much
	Err        error         // why it does not go on; it is tried again
	Failures   uint64        // in a row
	Planned    bool          // its streams are in the plan
}

// plan notes the generations of the plan event at seq, or of a restored state.
func (b *backfills) plan(seq log.Seq, gens []generation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id := range b.known {
		if id <= seq && !slices.ContainsFunc(gens, func(g generation) bool { return g.id == id }) {
			delete(b.known, id)
		}
	}
	for id := range b.live {
		if !slices.ContainsFunc(gens, func(g generation) bool { return g.id == log.Seq(id) && g.until == 0 }) {
			delete(b.live, id)
		}
	}
	for i := range gens {
		g := gens[i]
		g.streams = slices.Clone(g.streams)
		if k := b.known[g.id]; k != nil {
			k.gen = g
		} else if g.id == seq {
			b.add(g, g.from-1)
		}
	}
	b.changed.Fire()
}

// add notes a generation whose state on disk reflects the events up to a sequence.
func (b *backfills) add(g generation, at log.Seq) {
	if b.known == nil {
		b.known = make(map[log.Seq]*backfill)
	}
	b.known[g.id] = &backfill{
		gen: g, durable: at, written: at, left: Shards,
		progress: Backfill{Generation: g.id, From: g.from, Seq: at, Left: -1},
	}
}

// wanted returns the first event that some generation still needs.
func (b *backfills) wanted() log.Seq {
	b.mu.Lock()
	defer b.mu.Unlock()
	least := log.Seq(math.MaxUint64)
	for _, k := range b.known {
		least = min(least, k.durable+1)
	}
	return least
}

// wrote notes that the state up to a sequence is committed.
func (b *backfills) wrote(id, at log.Seq) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.known[id]; k != nil {
		k.written = at
	}
}

// goesOn notes that the live fold has a generation from its start on.
func (b *backfills) goesOn(id log.Seq) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.live == nil {
		b.live = make(map[uint64]struct{})
	}
	b.live[uint64(id)] = struct{}{}
}

// restarts notes that a generation is folded from its beginning again.
func (b *backfills) restarts(id log.Seq) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.known[id]; k != nil {
		k.durable, k.written = k.gen.from-1, k.gen.from-1
	}
}

// handedOver notes that the live fold has taken over a generation, or what it had published if it is over.
func (b *backfills) handedOver(id log.Seq, over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	k := b.known[id]
	if k == nil {
		return
	}
	k.handed = true
	if over {
		k.left = 0 // its last state is committed
		return
	}
	if b.live == nil {
		b.live = make(map[uint64]struct{})
	}
	b.live[uint64(id)] = struct{}{}
}

// saved notes that a checkpoint of the live fold with the generation's shard is committed.
func (b *backfills) saved(id log.Seq, shard int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.known[id]; k != nil && k.handed && !k.saved[shard] {
		k.saved[shard] = true
		k.left--
	}
}

// flushing is called before a flush; what it returns after it, if it has succeeded.
func (b *backfills) flushing() (flushed func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := make(map[log.Seq]log.Seq)
	var over []log.Seq
	for id, k := range b.known {
		at[id] = k.written
		if k.handed && k.left == 0 {
			over = append(over, id)
		}
	}
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for id, seq := range at {
			if k := b.known[id]; k != nil {
				k.durable = max(k.durable, seq)
			}
		}
		for _, id := range over {
			delete(b.known, id)
		}
	}
}

// pending returns the generations that are to be folded, by their order.
func (b *backfills) pending() []generation {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []generation
	for _, k := range b.known {
		if !k.handed && k.gen.id != 0 && len(k.gen.streams) > 0 {
			out = append(out, k.gen)
		}
	}
	slices.SortFunc(out, func(x, y generation) int { return int(int64(x.id) - int64(y.id)) })
	return out
}

// report keeps how far a generation has come.
func (b *backfills) report(id log.Seq, f func(*Backfill)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if k := b.known[id]; k != nil {
		f(&k.progress)
	}
}

// Backfills describes the generations that are folded in the background, by their order.
func (p *Projection) Backfills() []Backfill {
	b := &p.backfills
	head := p.events.Head()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []Backfill
	for _, k := range b.known {
		if k.handed || len(k.gen.streams) == 0 {
			continue
		}
		d := k.progress
		d.Target, d.Planned = head, k.gen.until == 0
		if !d.Planned {
			d.Target = k.gen.until
		}
		for _, st := range k.gen.streams {
			if st.removed == 0 {
				d.Streams = append(d.Streams, st.id)
			}
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(x, y Backfill) int { return int(int64(x.Generation) - int64(y.Generation)) })
	return out
}

// HandedOver returns the generations that the live fold has taken over, increasing: what a plan event is to say of them.
func (p *Projection) HandedOver() []uint64 {
	p.backfills.mu.Lock()
	defer p.backfills.mu.Unlock()
	return slices.Sorted(maps.Keys(p.backfills.live))
}

// restoreGenerations loads the states of the later generations. Those that stand where the shards of the first do go on with them;
// the others are folded on in the background. It returns the newest event that any of them reflects.
func (p *Projection) restoreGenerations() (newest log.Seq, err error) {
	stored, err := p.store.Generations()
	if err != nil {
		return 0, err
	}
	ids := make(map[log.Seq]struct{})
	for _, id := range stored {
		ids[log.Seq(id)] = struct{}{}
	}
	for _, w := range p.workers {
		for _, s := range w.shards {
			if s != nil {
				for i := range s.generations {
					ids[s.generations[i].id] = struct{}{}
				}
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		at, err := p.restoreGeneration(id)
		if err != nil {
			return 0, fmt.Errorf("streams planned at %d: %w", id, err)
		}
		newest = max(newest, at)
	}
	return newest, nil
}

// restoreGeneration restores one generation. Either every shard of it goes on with the live fold, or has ended, or was dropped; or
// all of them are folded on in the background.
func (p *Projection) restoreGeneration(id log.Seq) (newest log.Seq, err error) {
	var shards group
	var gen generation
	fits, hosts := true, false
	for i := range Shards {
		s := p.workers[i%len(p.workers)].shards[i]
		seq, state, ok, err := p.store.GenerationState(uint64(id), i)
		if err != nil {
			return 0, err
		}
		if ok {
			newest = max(newest, log.Seq(seq))
		}
		g := s.generationByID(id)
		if g != nil {
			gen = *g
		}
		switch {
		case g == nil:
			fits = fits && s.seq >= id // dropped; else the plan is still to be replayed
		case g.until != 0:
			fits = fits && ok && log.Seq(seq) == g.until
		case ok && log.Seq(seq) == s.seq:
			hosts = true
			from := residents{index: p.index}
			shards[i], err = p.restoreGenerationShard(i, &from, id, seq, state)
			if err = cmp.Or(from.err, err); err != nil {
				return 0, err
			}
			shards[i].labels = p.index
		default:
			fits = false
		}
	}
	if fits {
		if hosts {
			for _, w := range p.workers {
				w.host(id, gen.from, &shards)
			}
			p.backfills.goesOn(id)
		}
		return newest, nil
	}
	at, _, ok, err := p.store.GenerationNote(uint64(id))
	if err != nil {
		return 0, err
	}
	if !ok && gen.from > 0 {
		at = uint64(gen.from - 1)
	}
	gen.id, gen.streams = id, slices.Clone(gen.streams)
	p.backfills.add(gen, log.Seq(at))
	return newest, nil
}

// restoreGenerationShard reads the state of one shard of a generation, and what it has counted.
func (p *Projection) restoreGenerationShard(i int, ls LabelSource, id log.Seq, seq uint64, state []byte) (*Shard, error) {
	s, err := decodeGenerationShard(i, ls, id, seq, state)
	if err != nil || len(s.streams) == 0 {
		return s, err
	}
	rows, err := p.store.Experiments(uint64(id), i)
	if err == nil {
		err = s.restoreExperiments(rows)
	}
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", i, err)
	}
	return s, nil
}

// decodeGenerationShard reads the state of one shard of a generation.
func decodeGenerationShard(i int, ls LabelSource, id log.Seq, seq uint64, state []byte) (*Shard, error) {
	s, err := DecodeShard(i, ls, state)
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", i, err)
	}
	if s.seq != log.Seq(seq) || s.generation != id {
		return nil, fmt.Errorf("shard %d: %w: state of generation %d at %d under generation %d at %d", i, ErrCorruptState, s.generation, s.seq, id, seq)
	}
	return s, nil
}
