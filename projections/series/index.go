// Package series is the index of label sets as queries read it: selectors answered by postings, and label sets by reference.
//
// A series is *resident* while the fold keeps something of it besides its closure watermarks. Resident series have their label
// set and their postings in memory. Of all others the log's dictionary knows the label set, behind a bounded cache (Find); which
// of them still have buckets, and where, is for those who keep the buckets to say (Stored).
//
// Life cycle: New, then Load and Keep; whoever folds events calls Add and Evict, readers run beside them; Run gives back what evicted
// series have left behind. The index holds no file of its own: everything in it is in the log.
//
// Invariants.
//
//	S1  A reference has one label set for good; references are never rebound.
//	S2  One goroutine at a time adds and evicts one series; readers see a resident series whole or not at all.
//	S3  A series whose Add has returned is found by every Select that begins later, until it is evicted; a Follower that began before
//	    tells of it. So whoever follows first and selects then misses none.
//	    (Lists leave out series whose names belong to somebody else, see Shade; Select does not.)
//	S4  Memory grows with the resident series and the cache, not with the series ever seen.
package series

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/index"

	"tidemark/log"
)

const (
	// pageSize is the number of entries on one page of a table.
	pageSize = 1024
	// cachedLabels is the number of label sets of series that are not resident which one generation of the cache holds.
	cachedLabels = 1 << 15
	// sweepPart is the part of the entries that evicted series may hold until a sweep is due, and leastSweep the number below
	// which none is.
	sweepPart  = 8
	leastSweep = 4096
)

// place is where a resident series stands in the postings. Each residence has a place of its own, in increasing order: so
// postings lists are only appended to, whatever reference comes back.
type place uint64

// Index maps references to label sets and answers selectors. The zero value is not usable; see New.
type Index struct {
	postings   *index.MemPostings
	dictionary Dictionary
	stored     Stored
	foreign    func() []string
	mostStored int // MaxStored

	mu      sync.RWMutex
	places  pages[place]    // by reference; 0: not resident
	entries pages[entry]    // by place
	next    place           // the newest place
	count   int             // resident series
	gone    []place         // evicted, and not swept yet
	due     chan struct{}   // has room for one: a sweep is due
	tail    []log.SeriesRef // what became resident while there are followers
	base    int             // position of tail[0]
	follow  map[*Follower]int

	cache    labelCache
	sweeping sync.Mutex
}

type entry struct {
	ref    log.SeriesRef // 0: none
	labels labels.Labels
}

// New returns an empty index.
func New() *Index {
	return &Index{
		postings: index.NewMemPostings(), due: make(chan struct{}, 1), follow: make(map[*Follower]int), cache: newLabelCache(cachedLabels),
		mostStored: MaxStored,
	}
}

// Dictionary is where the label sets of all series are found.
type Dictionary interface {
	Labels(ref log.SeriesRef) (labels.Labels, bool, error)
}

// Stored knows the series that are not resident and have buckets that are still retained. It may yield a series more than once,
// and resident ones too.
type Stored interface {
	Stored(ctx context.Context, yield func(log.SeriesRef) error) error
}

// Load makes the definitions of the dictionary known. They are read when they are asked for. It must be called before anything else.
func (x *Index) Load(d Dictionary) error {
	x.dictionary = d
	return nil
}

// Keep says who knows the series that are not resident. It must be called before the index is read.
func (x *Index) Keep(s Stored) { x.stored = s }

// Shade says under which metric names series are read that are none of these here: lists leave out what has one of them. names is called
// for each list. It must be called before the index is read.
func (x *Index) Shade(names func() []string) { x.foreign = names }

// Add makes a series resident. It does nothing if it is (S1).
func (x *Index) Add(ref log.SeriesRef, ls labels.Labels) {
	x.mu.Lock()
	if x.places.get(uint64(ref)) != 0 {
		x.mu.Unlock()
		return
	}
	x.next++
	at := x.next
	x.places.set(uint64(ref), at)
	x.entries.set(uint64(at), entry{ref: ref, labels: ls})
	x.count++
	// Under the lock, so that places come into the postings in their order.
	x.postings.Add(storage.SeriesRef(at), ls)
	if len(x.follow) > 0 {
		x.tail = append(x.tail, ref)
	}
	x.mu.Unlock()
}

// Evict ends the residence of series. Their label sets are found by Find from then on.
func (x *Index) Evict(refs []log.SeriesRef) {
	x.mu.Lock()
	for _, ref := range refs {
		at := x.places.get(uint64(ref))
		if at == 0 {
			continue
		}
		x.places.set(uint64(ref), 0)
		x.gone = append(x.gone, at)
		x.count--
	}
	sweep := len(x.gone) >= max(leastSweep, x.count/sweepPart)
	x.mu.Unlock()
	if sweep {
		select {
		case x.due <- struct{}{}:
		default:
		}
	}
}

// Run sweeps when a sweep is due, until ctx ends.
func (x *Index) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-x.due:
			x.Sweep()
		}
	}
}

// Sweep gives back what evicted series have left in the postings. Its cost grows with the postings lists that they stand in, which is
// why it is done for many at a time.
func (x *Index) Sweep() {
	x.sweeping.Lock()
	defer x.sweeping.Unlock()
	x.mu.Lock()
	gone := x.gone
	x.gone = nil
	deleted := make(map[storage.SeriesRef]struct{}, len(gone))
	affected := make(map[labels.Label]struct{})
	for _, at := range gone {
		deleted[storage.SeriesRef(at)] = struct{}{}
		x.entries.get(uint64(at)).labels.Range(func(l labels.Label) { affected[l] = struct{}{} })
	}
	x.mu.Unlock()
	if len(gone) == 0 {
		return
	}
	x.postings.Delete(deleted, affected)
	x.mu.Lock()
	for _, at := range gone {
		x.entries.set(uint64(at), entry{})
	}
	x.mu.Unlock()
}

// Labels returns the label set of a resident series; false if it is not resident. It does no I/O.
func (x *Index) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	at := x.places.get(uint64(ref))
	if at == 0 {
		return labels.EmptyLabels(), false
	}
	return x.entries.get(uint64(at)).labels, true
}

// Find returns the label set of any series that was ever defined and is not forgotten by the dictionary; false if there is none.
func (x *Index) Find(ref log.SeriesRef) (labels.Labels, bool, error) {
	if ls, ok := x.Labels(ref); ok {
		return ls, true, nil
	}
	if ls, ok := x.cache.get(ref); ok {
		return ls, true, nil
	}
	if x.dictionary == nil {
		return labels.EmptyLabels(), false, nil
	}
	ls, ok, err := x.dictionary.Labels(ref)
	if err != nil {
		return labels.EmptyLabels(), false, fmt.Errorf("series: labels of %d: %w", ref, err)
	}
	if ok {
		x.cache.put(ref, ls)
	}
	return ls, ok, nil
}

// Len returns the number of resident series.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.count
}

// Follower tells which series became resident since it began.
type Follower struct{ x *Index }

// Follow begins to follow. End must be called.
func (x *Index) Follow() *Follower {
	f := &Follower{x}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.follow[f] = x.base + len(x.tail)
	return f
}

// Added returns the series that became resident since f began, in no order; nil once it has ended. The result must not be changed.
func (f *Follower) Added() []log.SeriesRef {
	f.x.mu.RLock()
	defer f.x.mu.RUnlock()
	from, ok := f.x.follow[f]
	if !ok {
		return nil
	}
	return f.x.tail[from-f.x.base : len(f.x.tail) : len(f.x.tail)]
}

// End ends following.
func (f *Follower) End() {
	x := f.x
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.follow, f)
	least := x.base + len(x.tail)
	for _, from := range x.follow {
		least = min(least, from)
	}
	if len(x.follow) == 0 {
		x.tail = nil
	} else {
		x.tail = x.tail[least-x.base:]
	}
	x.base = least
}

// Select returns the resident series whose label sets match all matchers, increasing.
func (x *Index) Select(ctx context.Context, ms ...*labels.Matcher) ([]log.SeriesRef, error) {
	var its, drops []index.Postings
	for _, m := range ms {
		// A matcher that also matches the absent label excludes those that carry a value it does not match.
		if m.Matches("") {
			inv, err := m.Inverse()
			if err != nil {
				return nil, fmt.Errorf("series: matcher %s: %w", m, err)
			}
			drops = append(drops, x.matching(ctx, inv))
			continue
		}
		its = append(its, x.matching(ctx, m))
	}
	if len(its) == 0 {
		its = append(its, x.postings.All())
	}
	p := index.Intersect(its...)
	for _, d := range drops {
		p = index.Without(p, d)
	}
	var found []place
	for p.Next() {
		found = append(found, place(p.At()))
	}
	if err := p.Err(); err != nil {
		return nil, fmt.Errorf("series: select: %w", err)
	}
	return x.refs(found), ctx.Err()
}

// refs returns the series that are resident in the given places, increasing.
func (x *Index) refs(at []place) []log.SeriesRef {
	out := make([]log.SeriesRef, 0, len(at))
	x.mu.RLock()
	for _, p := range at {
		ref := x.entries.get(uint64(p)).ref
		if ref != 0 && x.places.get(uint64(ref)) == p {
			out = append(out, ref)
		}
	}
	x.mu.RUnlock()
	if !slices.IsSorted(out) {
		slices.Sort(out)
	}
	return out
}

// matching returns the series that carry a non-empty value which m matches.
func (x *Index) matching(ctx context.Context, m *labels.Matcher) index.Postings {
	switch m.Type {
	case labels.MatchEqual:
		return x.postings.Postings(ctx, m.Name, m.Value)
	case labels.MatchRegexp:
		if set := m.SetMatches(); len(set) > 0 {
			return x.postings.Postings(ctx, m.Name, slices.Clone(set)...)
		}
	}
	return x.postings.PostingsForLabelMatching(ctx, m.Name, m.Matches)
}

// MatchAll says whether a label set matches all matchers.
func MatchAll(ls labels.Labels, ms []*labels.Matcher) bool {
	for _, m := range ms {
		if !m.Matches(ls.Get(m.Name)) {
			return false
		}
	}
	return true
}
