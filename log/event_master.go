package log

// The events of the control plane: what maintenance did to experiments, and its tasks.

import (
	"encoding/binary"
	"fmt"

	"github.com/oklog/ulid/v2"
)

// Compacted says that the corrections of one experiment's buckets, up to and including the event Through, have been merged
// into whole pieces. It changes no published content, only what is counted as not yet compacted.
type Compacted struct {
	Experiment string
	Through    Seq
	Pieces     uint64 // merged
	Read       uint64 // bytes of pieces
	Written    uint64
}

// ExperimentRetired says that one experiment has been idle for long enough and that nothing of it was open or uncompacted when
// its state was last read. Its counters as of then go with the event, for each shard of the fold that had some: the fold takes
// them out of what it keeps in memory, so a sample between the reading and the event is neither lost nor counted twice.
type ExperimentRetired struct {
	Experiment    string
	AtVersion     Seq   // the experiment's version when it was read
	LastWrite     int64 // ms since the epoch, of its last accepted sample
	ClosedThrough int64 // ms; math.MinInt64 if nothing was closed
	Parts         []RetiredPart
	Later         []RetiredLater
}

// RetiredPart is what one shard of the fold had counted. Parts are by increasing shard, which is below MaxShards.
type RetiredPart struct {
	Shard                    uint32
	Series, Samples, Buckets uint64
}

// RetiredLater is what one shard of a later generation of streams had counted: see projections/pane. They are by increasing generation and
// shard.
type RetiredLater struct {
	Generation Seq // the plan event that added the streams
	Shard      uint32
	Buckets    uint64
}

func (l RetiredLater) before(o RetiredLater) bool {
	return l.Generation < o.Generation || l.Generation == o.Generation && l.Shard < o.Shard
}

// MaxShards bounds the shards that a RetiredPart can name.
const MaxShards = 1 << 16

// TaskKind says what a task does. The numbers are on disk.
type TaskKind uint8

// The kinds of tasks.
const (
	TaskCompact TaskKind = 1 // merge the pieces that corrections have touched
	TaskPublish TaskKind = 2 // let log time pass for open panes that should have closed
	TaskRescan  TaskKind = 3 // read the experiment's state again
)

// String returns the name of the kind in the API.
func (k TaskKind) String() string {
	switch k {
	case TaskCompact:
		return "compact"
	case TaskPublish:
		return "publish"
	case TaskRescan:
		return "rescan"
	default:
		return "unknown"
	}
}

func (k TaskKind) valid() bool { return k >= TaskCompact && k <= TaskRescan }

// TaskQueued says that something is to be done for one experiment.
type TaskQueued struct {
	ID      ulid.ULID
	Task    TaskKind
	Target  string // an experiment
	Options string // of the kind; two tasks with other options are not the same work
	Manual  bool   // a person asked for it, not a sweep
}

// TaskStarted says that work on a task began. If the process ends before a TaskFinished, the next start queues it again.
type TaskStarted struct {
	ID ulid.ULID
}

// TaskFinished says how a task ended.
type TaskFinished struct {
	ID        ulid.ULID
	Failed    bool
	Class     string // of the error, by its type; empty unless Failed
	Message   string // of the error, for people; or what was done
	Unchanged bool   // there was nothing to do
	Version   Seq    // of the target when the task looked at it; 0 if it did not
}

// Kind implements Body.
func (*Compacted) Kind() Kind { return KindCompacted }

// Kind implements Body.
func (*ExperimentRetired) Kind() Kind { return KindExperimentRetired }

// Kind implements Body.
func (*TaskQueued) Kind() Kind { return KindTaskQueued }

// Kind implements Body.
func (*TaskStarted) Kind() Kind { return KindTaskStarted }

// Kind implements Body.
func (*TaskFinished) Kind() Kind { return KindTaskFinished }

// appendMaster appends the payload of an event of the control plane.
func appendMaster(dst []byte, b Body) ([]byte, error) {
	switch b := b.(type) {
	case *Compacted:
		dst = appendString(dst, b.Experiment)
		for _, n := range [...]uint64{uint64(b.Through), b.Pieces, b.Read, b.Written} {
			dst = binary.AppendUvarint(dst, n)
		}
		return dst, nil
	case *ExperimentRetired:
		dst = appendString(dst, b.Experiment)
		dst = binary.AppendUvarint(dst, uint64(b.AtVersion))
		dst = binary.AppendVarint(dst, b.LastWrite)
		dst = binary.AppendVarint(dst, b.ClosedThrough)
		dst = binary.AppendUvarint(dst, uint64(len(b.Parts)))
		for i, p := range b.Parts {
			if p.Shard >= MaxShards || i > 0 && p.Shard <= b.Parts[i-1].Shard {
				return dst, fmt.Errorf("%w: retired part %d is of shard %d", ErrInvalid, i, p.Shard)
			}
			for _, n := range [...]uint64{uint64(p.Shard), p.Series, p.Samples, p.Buckets} {
				dst = binary.AppendUvarint(dst, n)
			}
		}
		return appendLater(dst, b.Later)
	case *TaskQueued:
		if !b.Task.valid() {
			return dst, fmt.Errorf("%w: task of kind %d", ErrInvalid, b.Task)
		}
		dst = append(append(dst, b.ID[:]...), byte(b.Task), bit(b.Manual))
		return appendString(appendString(dst, b.Target), b.Options), nil
	case *TaskStarted:
		return append(dst, b.ID[:]...), nil
	case *TaskFinished:
		if b.Class != "" && !b.Failed {
			return dst, fmt.Errorf("%w: a task that did not fail has an error class", ErrInvalid)
		}
		dst = append(append(dst, b.ID[:]...), bit(b.Failed)|bit(b.Unchanged)<<1)
		dst = binary.AppendUvarint(dst, uint64(b.Version))
		return appendString(appendString(dst, b.Class), b.Message), nil
	default:
		return dst, fmt.Errorf("%w: body of type %T", ErrInvalid, b)
	}
}

// appendLater appends what later generations had counted; nothing where there are none, so that an event without them has the bytes that
// it had before there were generations.
func appendLater(dst []byte, later []RetiredLater) ([]byte, error) {
	if len(later) == 0 {
		return dst, nil
	}
	dst = binary.AppendUvarint(dst, uint64(len(later)))
	for i, l := range later {
		if l.Shard >= MaxShards || l.Generation == 0 || i > 0 && !later[i-1].before(l) {
			return dst, fmt.Errorf("%w: later part %d is of generation %d, shard %d", ErrInvalid, i, l.Generation, l.Shard)
		}
		for _, n := range [...]uint64{uint64(l.Generation), uint64(l.Shard), l.Buckets} {
			dst = binary.AppendUvarint(dst, n)
		}
	}
	return dst, nil
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// master reads the payload of an event of the control plane; nil if the kind is none.
func (d *decoder) master(k Kind) Body {
	switch k {
	case KindCompacted:
		return &Compacted{
			Experiment: string(d.bytes()), Through: Seq(d.uvarint()), Pieces: d.uvarint(), Read: d.uvarint(), Written: d.uvarint(),
		}
	case KindExperimentRetired:
		return d.retired()
	case KindTaskQueued:
		q := &TaskQueued{ID: d.ulid(), Task: TaskKind(d.byte()), Manual: d.flags(1) != 0, Target: string(d.bytes()), Options: string(d.bytes())}
		if d.reason == "" && !q.Task.valid() {
			d.fail("unknown kind of task")
		}
		return q
	case KindTaskStarted:
		return &TaskStarted{ID: d.ulid()}
	case KindTaskFinished:
		f := &TaskFinished{ID: d.ulid()}
		bits := d.flags(3)
		f.Failed, f.Unchanged = bits&1 != 0, bits&2 != 0
		f.Version, f.Class, f.Message = Seq(d.uvarint()), string(d.bytes()), string(d.bytes())
		if d.reason == "" && f.Class != "" && !f.Failed {
			d.fail("error class without an error")
		}
		return f
	default:
		return nil
	}
}

func (d *decoder) retired() *ExperimentRetired {
	r := &ExperimentRetired{
		Experiment: string(d.bytes()), AtVersion: Seq(d.uvarint()), LastWrite: d.varint(), ClosedThrough: d.varint(),
	}
	for i := range d.count(4) {
		shard := d.uvarint()
		if shard >= MaxShards || i > 0 && uint32(shard) <= r.Parts[i-1].Shard {
			d.fail("parts out of order")
			return r
		}
		r.Parts = append(r.Parts, RetiredPart{Shard: uint32(shard), Series: d.uvarint(), Samples: d.uvarint(), Buckets: d.uvarint()})
	}
	if d.reason != "" || len(d.b) == 0 {
		return r
	}
	n := d.count(3)
	if n == 0 {
		d.fail("a list of later parts without any")
		return r
	}
	for i := range n {
		generation, shard := Seq(d.uvarint()), d.uvarint()
		l := RetiredLater{Generation: generation, Shard: uint32(shard), Buckets: d.uvarint()}
		if shard >= MaxShards || generation == 0 || i > 0 && !r.Later[i-1].before(l) {
			d.fail("later parts out of order")
			return r
		}
		r.Later = append(r.Later, l)
	}
	return r
}

func (d *decoder) ulid() (id ulid.ULID) {
	copy(id[:], d.take(len(id)))
	return id
}

// flags reads a byte of which only the given bits may be set.
func (d *decoder) flags(known byte) byte {
	b := d.byte()
	if b&^known != 0 {
		d.fail("unknown flags")
		return 0
	}
	return b
}
