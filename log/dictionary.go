package log

// Series and their references. Data path 1 of 6: decode and check.

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"
)

const (
	// maxAliases is how many spellings (orders of labels, empty values, other field orders) of one series are remembered;
	// a further one takes the place of the oldest.
	maxAliases = 4
	// maxFresh is how many series may wait for the first event that uses them. They are pinned: about 500 bytes each.
	maxFresh = 1 << 20
	// dictionaryShards and resolveStripes spread the locks.
	dictionaryShards = 64
	resolveStripes   = 64
)

// Dictionary binds label sets to references.
//
// A reference is assigned by Resolve, in memory, and is *fresh* until the committer puts its definition into the batch of
// the first event, in the order of the log, that uses it (L6). So two concurrent requests with the same new series are right
// whichever is committed first. From then on the definition is found in the store, and what the caches hold is only a
// matter of speed: they are bounded by what is in use (aliasShard.turnOver), and forget by generations (a full young generation becomes the old one, whose
// predecessor is dropped; what is found in the old one moves to the young).
//
// Lock order: stripe, then fresh. An entry leaves `fresh` only after its definition is in the store, and Resolve looks at
// `fresh` first and at the store second, under the stripe of the label set: so it can never miss one that exists. Most new series are
// told from those in the store without looking there (see known): a hash is known from before it is fresh. What leaves the
// dictionary again, and how, is in forget.go.
type Dictionary struct {
	census Census // nil: nobody counts
	store  storeReader
	seed   uint64

	shards  [dictionaryShards]aliasShard
	stripes [resolveStripes]sync.Mutex

	epoch      atomic.Uint64 // see Epoch
	freshCount atomic.Int64
	leaving    atomic.Bool          // something is retiring or forgotten, or was
	learn      chan struct{}        // has room for one: known is full
	now        func() time.Duration // monotonic
	fresh      struct {
		sync.Mutex
		retirement
		byHash  map[Hash]*freshSeries
		byRef   map[SeriesRef]*freshSeries
		applied map[SeriesRef]struct{} // definitions in the store that are not fsynced yet
		next    SeriesRef

		known    *known // nil: nobody knows yet what the store has
		learning *known // what the store has is being added to it; nil: none

		greatest SeriesRef // the greatest reference that has a definition in the store; it is never forgotten
	}
}

// storeReader is what the dictionary needs of the store.
type storeReader interface {
	get(key []byte, use func(value []byte) error) (found bool, err error)
	iterate(lower, upper []byte, use func(key, value []byte) (bool, error), begin func()) error
}

// Census is told of the series that come and go, so that somebody can bound them. It is called with locks held: it never blocks.
type Census interface {
	// Admit is asked before a series gets its first reference. Its error refuses the series, and is what Resolve returns.
	Admit(labels.Labels) error
	// Left is told of a series that is known no more.
	Left(labels.Labels)
}

// SetCensus sets the census, before the first call of Resolve, and returns the reference that the next new series gets: the census
// has not heard of the series before it.
func (d *Dictionary) SetCensus(c Census) SeriesRef {
	d.fresh.Lock()
	defer d.fresh.Unlock()
	d.census = c
	return d.fresh.next
}

type freshSeries struct {
	ref     SeriesRef
	hash    Hash
	encoded []byte
	labels  labels.Labels
	defined bool // by an event of the batch that is being built
	since   time.Duration
}

type aliasShard struct {
	sync.RWMutex
	young, old map[Hash]SeriesRef
	limit      int    // entries of a generation
	least      int    // of them, those that there is always room for
	again      int    // entries of the young generation that were known before
	turned     uint64 // the epoch in which the young generation began
	// spellings of a series that were remembered, by generation like the above.
	spellings, oldSpellings map[SeriesRef]spelling
}

// spelling is a ring of the aliases of a series.
type spelling struct {
	first Hash
	more  []Hash
	next  uint8
}

func newDictionary(store storeReader, seed uint64, cache int, next SeriesRef) *Dictionary {
	d := &Dictionary{store: store, seed: seed}
	for i := range d.shards {
		s := &d.shards[i]
		s.young, s.spellings = make(map[Hash]SeriesRef), make(map[SeriesRef]spelling)
		s.least = max(1, cache/(2*dictionaryShards))
		s.limit = s.least
	}
	d.fresh.byHash = make(map[Hash]*freshSeries)
	d.fresh.byRef = make(map[SeriesRef]*freshSeries)
	d.fresh.applied = make(map[SeriesRef]struct{})
	d.fresh.next, d.fresh.greatest = next, next-1
	d.now = func() time.Duration { return 0 }
	d.learn = make(chan struct{}, 1)
	if next == 1 {
		d.fresh.known = newKnown(0) // nothing was ever defined
	}
	return d
}

// Hash is the keyed hash of the label bytes of a series as they stand in a request.
func (d *Dictionary) Hash(raw []byte) Hash { return xxh3.Hash128Seed(raw, d.seed).Bytes() }

// canonicalHash names a label set in the store. It has another seed, so that no request can spell it.
func (d *Dictionary) canonicalHash(encoded []byte) Hash {
	return xxh3.Hash128Seed(encoded, ^d.seed).Bytes()
}

// Lookup finds the reference of a hash that Resolve has seen before. It does not allocate and never reads the disk.
func (d *Dictionary) Lookup(h Hash) (SeriesRef, bool) {
	s := &d.shards[h[0]%dictionaryShards]
	s.RLock()
	ref, ok := s.young[h]
	if ok || s.old == nil {
		s.RUnlock()
		return ref, ok
	}
	ref, ok = s.old[h]
	s.RUnlock()
	if ok {
		s.Lock()
		if now, still := s.old[h]; still && now == ref { // it may have been purged meanwhile
			d.put(s, h, ref, true)
		}
		s.Unlock()
	}
	return ref, ok
}

// Epoch is another number once references that Lookup gave may have been retired or dropped, or are in the old generation, half of whose
// time is over: who has kept what Lookup said is to look it up again then. For the length of a request it may be kept whatever Epoch
// says: an append that comes too late is refused with ErrForgotten.
func (d *Dictionary) Epoch() uint64 { return d.epoch.Load() }

// put must be called with the lock held. known is whether the series was known before.
func (d *Dictionary) put(s *aliasShard, h Hash, ref SeriesRef, known bool) {
	if len(s.young) >= s.limit {
		s.turnOver()
		s.turned = d.epoch.Load()
	}
	if known {
		s.again++
	}
	s.young[h] = ref
	if s.old != nil && len(s.young) == (s.limit+1)/2 {
		d.epoch.CompareAndSwap(s.turned, s.turned+1)
	}
}

// turnOver begins another generation. If most entries of the last one were of series that were known before, more series take turns than
// there is room for, or nearly so, and each that is forgotten costs two reads of the store: there is room for twice as many then. New ones,
// of which most may never come again, make no more room, and what few come back to is given back.
func (s *aliasShard) turnOver() {
	switch {
	case s.again > s.limit/2:
		s.limit = min(2*s.limit, max(s.least, maxDictionaryCache/(2*dictionaryShards)))
	case s.again < s.limit/8:
		s.limit = max(s.limit/2, s.least)
	}
	s.again = 0
	s.old, s.young = s.young, make(map[Hash]SeriesRef, len(s.young))
}

// Resolve returns the reference of a label set after Lookup(raw) has missed, assigns one if it has none, and remembers raw
// as its alias. ls must be sorted by name, without repeats and empty values (ErrInvalid). It fails with ErrDictionaryFull,
// with ErrClosed, or with an error of the store.
func (d *Dictionary) Resolve(raw Hash, ls labels.Labels) (SeriesRef, error) {
	if err := checkLabels(ls); err != nil {
		return 0, err
	}
	encoded := appendLabels(make([]byte, 0, 256), ls)
	hash := d.canonicalHash(encoded)
	stripe := &d.stripes[hash[1]%resolveStripes]
	stripe.Lock()
	defer stripe.Unlock()
	ref, err := d.find(hash, encoded)
	if err == nil && ref != 0 && d.leaving.Load() {
		d.fresh.Lock()
		d.callBack(ref) // under the stripe, so it is not forgotten
		d.fresh.Unlock()
	}
	known := ref != 0
	if err == nil && !known {
		ref, err = d.assign(hash, encoded, ls)
	}
	if err != nil {
		return 0, err
	}
	d.remember(raw, ref, known)
	return ref, nil
}

func checkLabels(ls labels.Labels) error {
	if ls.IsEmpty() {
		return fmt.Errorf("%w: series without labels", ErrInvalid)
	}
	prev := ""
	return ls.Validate(func(l labels.Label) error {
		if l.Name <= prev || l.Value == "" {
			return fmt.Errorf("%w: labels are not canonical at %q", ErrInvalid, l.Name)
		}
		prev = l.Name
		return nil
	})
}

// find looks at the fresh series and then at the store; 0 is none.
func (d *Dictionary) find(hash Hash, encoded []byte) (SeriesRef, error) {
	d.fresh.Lock()
	f, k := d.fresh.byHash[hash], d.fresh.known
	d.fresh.Unlock()
	if f == nil && k != nil && !k.has(hash) {
		return 0, nil
	}
	if f != nil {
		if !bytes.Equal(f.encoded, encoded) {
			return 0, corrupt(0, "two label sets have the hash %x", hash)
		}
		return f.ref, nil
	}
	var ref SeriesRef
	found, err := d.store.get(hashKey(hash), func(value []byte) error {
		if len(value) != 8 {
			return corrupt(0, "dictionary entry of hash %x has %d bytes", hash, len(value))
		}
		ref = SeriesRef(binary.BigEndian.Uint64(value))
		return nil
	})
	if err != nil || !found {
		return 0, err
	}
	found, err = d.store.get(seriesKey(ref), func(value []byte) error {
		if !bytes.Equal(value, encoded) {
			return corrupt(0, "series %d has other labels than its hash %x", ref, hash)
		}
		return nil
	})
	if err == nil && !found {
		err = corrupt(0, "series %d of hash %x has no labels", ref, hash)
	}
	return ref, err
}

func (d *Dictionary) assign(hash Hash, encoded []byte, ls labels.Labels) (SeriesRef, error) {
	d.fresh.Lock()
	defer d.fresh.Unlock()
	if len(d.fresh.byRef) >= maxFresh {
		return 0, ErrDictionaryFull
	}
	if d.census != nil {
		if err := d.census.Admit(ls); err != nil {
			return 0, err
		}
	}
	f := &freshSeries{ref: d.fresh.next, hash: hash, encoded: slices.Clip(encoded), labels: ls.Copy(), since: d.now()}
	d.fresh.next++
	d.fresh.byHash[hash], d.fresh.byRef[f.ref] = f, f
	d.note(hash)
	d.freshCount.Add(1)
	return f.ref, nil
}

// remember makes raw an alias of ref. At most maxAliases of a series are held, wherever their hashes fall.
func (d *Dictionary) remember(raw Hash, ref SeriesRef, known bool) {
	s := &d.shards[uint64(ref)%dictionaryShards]
	s.Lock()
	sp, seen := s.spellings[ref]
	if !seen {
		if sp, seen = s.oldSpellings[ref]; !seen {
			sp = spelling{first: raw}
		}
	}
	var evicted Hash
	var evict bool
	if seen && sp.first != raw && !slices.Contains(sp.more, raw) {
		evicted, evict = sp.add(raw)
	}
	if len(s.spellings) >= s.limit {
		s.oldSpellings, s.spellings = s.spellings, make(map[SeriesRef]spelling)
	}
	s.spellings[ref] = sp
	s.Unlock()

	if evict {
		s = &d.shards[evicted[0]%dictionaryShards]
		s.Lock()
		delete(s.young, evicted)
		delete(s.old, evicted)
		s.Unlock()
	}
	s = &d.shards[raw[0]%dictionaryShards]
	s.Lock()
	d.put(s, raw, ref, known)
	s.Unlock()
}

func (sp *spelling) add(raw Hash) (evicted Hash, evict bool) {
	if len(sp.more) < maxAliases-1 {
		sp.more = append(slices.Clip(sp.more), raw)
		return Hash{}, false
	}
	at := sp.next % maxAliases
	sp.next = at + 1
	if at == 0 {
		evicted, sp.first = sp.first, raw
		return evicted, true
	}
	sp.more = slices.Clone(sp.more)
	evicted, sp.more[at-1] = sp.more[at-1], raw
	return evicted, true
}

// Labels returns the labels of a reference; false if it has none. A reference that Resolve has just assigned counts.
func (d *Dictionary) Labels(ref SeriesRef) (labels.Labels, bool, error) {
	d.fresh.Lock()
	f := d.fresh.byRef[ref]
	d.fresh.Unlock()
	if f != nil {
		return f.labels, true, nil
	}
	var ls labels.Labels
	found, err := d.store.get(seriesKey(ref), func(value []byte) (err error) {
		ls, err = decodeSeries(ref, value)
		return err
	})
	return ls, found, err
}

func decodeSeries(ref SeriesRef, value []byte) (labels.Labels, error) {
	dec := decoder{b: value}
	b := labels.NewScratchBuilder(16)
	ls := dec.labels(&b, true)
	if dec.reason == "" && len(dec.b) > 0 {
		dec.fail("bytes left over")
	}
	if dec.reason != "" {
		return labels.EmptyLabels(), corrupt(0, "labels of series %d: %s", ref, dec.reason)
	}
	return ls, nil
}

// All yields the durable definitions in the order of their references until yield returns false. Definitions that become
// durable while it runs may be left out.
func (d *Dictionary) All(yield func(SeriesRef, labels.Labels) bool) error {
	var skip map[SeriesRef]struct{}
	// What the iterator sees was applied before it was made, hence noted in `applied` before, hence either still there
	// when it is copied after, or fsynced.
	begin := func() {
		d.fresh.Lock()
		skip = make(map[SeriesRef]struct{}, len(d.fresh.applied))
		for ref := range d.fresh.applied {
			skip[ref] = struct{}{}
		}
		d.fresh.Unlock()
	}
	return d.store.iterate([]byte{prefixSeries}, []byte{prefixSeries + 1}, func(key, value []byte) (bool, error) {
		if len(key) != 9 {
			return false, corrupt(0, "dictionary key of %d bytes", len(key))
		}
		ref := SeriesRef(binary.BigEndian.Uint64(key[1:]))
		if _, ok := skip[ref]; ok {
			return true, nil
		}
		ls, err := decodeSeries(ref, value)
		if err != nil {
			return false, err
		}
		return yield(ref, ls), nil
	}, begin)
}

// assigned reports whether Resolve has ever returned ref.
func (d *Dictionary) assigned(ref SeriesRef) bool {
	d.fresh.Lock()
	defer d.fresh.Unlock()
	return ref < d.fresh.next
}

// define sets w.Defs to the series of w that no event has used yet, and adds their keys to the batch. Only the committer
// calls it, and then applied and synced with what it returns.
func (d *Dictionary) define(w *Write, batch *pebble.Batch, defined []*freshSeries) ([]*freshSeries, error) {
	if d.freshCount.Load() == 0 {
		return defined, nil
	}
	begin := len(defined)
	d.fresh.Lock()
	use := func(ref SeriesRef) {
		if f := d.fresh.byRef[ref]; f != nil && !f.defined {
			f.defined = true
			defined = append(defined, f)
		}
	}
	for _, ref := range w.Refs {
		use(ref)
	}
	for i := range w.Exemplars {
		use(w.Exemplars[i].Ref)
	}
	for i := range w.Histograms {
		use(w.Histograms[i].Ref)
	}
	for _, f := range defined[begin:] {
		d.fresh.applied[f.ref] = struct{}{}
	}
	d.fresh.Unlock()

	news := defined[begin:]
	slices.SortFunc(news, func(a, b *freshSeries) int { return cmp.Compare(a.ref, b.ref) })
	w.Defs = slices.Grow(w.Defs, len(news))
	for _, f := range news {
		w.Defs = append(w.Defs, SeriesDef{Ref: f.ref, Labels: f.labels})
	}
	return defined, putDefinitions(batch, news)
}

// putDefinitions adds the keys of series, which come by reference. Each kind of keys is in order, because the store takes those faster.
func putDefinitions(batch *pebble.Batch, news []*freshSeries) error {
	for _, f := range news {
		op := batch.SetDeferred(1+8, len(f.encoded))
		op.Key[0] = prefixSeries
		binary.BigEndian.PutUint64(op.Key[1:], uint64(f.ref))
		copy(op.Value, f.encoded)
		if err := op.Finish(); err != nil {
			return err
		}
	}
	byHash := slices.Clone(news)
	slices.SortFunc(byHash, func(a, b *freshSeries) int { return bytes.Compare(a.hash[:], b.hash[:]) })
	for _, f := range byHash {
		op := batch.SetDeferred(1+len(f.hash), 8)
		op.Key[0] = prefixHash
		copy(op.Key[1:], f.hash[:])
		binary.BigEndian.PutUint64(op.Value, uint64(f.ref))
		if err := op.Finish(); err != nil {
			return err
		}
	}
	return nil
}

// applied forgets what is in the store now.
func (d *Dictionary) applied(defined []*freshSeries) {
	if len(defined) == 0 {
		return
	}
	d.fresh.Lock()
	for _, f := range defined {
		delete(d.fresh.byRef, f.ref)
		delete(d.fresh.byHash, f.hash)
		d.fresh.greatest = max(d.fresh.greatest, f.ref)
	}
	d.fresh.Unlock()
	d.freshCount.Add(-int64(len(defined)))
}

// synced is called when the batch with these definitions is durable.
func (d *Dictionary) synced(defined []*freshSeries) {
	if len(defined) == 0 {
		return
	}
	d.fresh.Lock()
	for _, f := range defined {
		delete(d.fresh.applied, f.ref)
	}
	d.fresh.Unlock()
}
