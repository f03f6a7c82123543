package log

// The dictionary forgets: series that nothing names any more, and fresh ones that no event came to use.

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/prometheus/prometheus/model/labels"
)

const (
	// freshStay is how long a series waits for the first event that uses it. Beyond it, its request has failed, and whoever sends the
	// series again resolves it again.
	freshStay = 10 * time.Minute
	// forgottenStay is how long at least a reference that was forgotten is remembered, so that an append that resolved it before is
	// refused; up to twice that. No request waits for as long between resolving its series and being appended.
	forgottenStay = 10 * time.Minute
)

// ErrForgotten: a write names a series that the dictionary has forgotten since it was resolved. It is to be resolved again.
var ErrForgotten = errors.New("a series was forgotten since it was resolved")

// Forgetting a durable series takes two steps, so that whoever decides that nothing names it need not stop the world. Retire notes
// that it may go. If it is resolved or named by an event after that, it is retiring no more. So when everything that was appended
// before Retire returned has been looked at, and does not name it either, Forget removes it, unless it was called back meanwhile.
//
// A reference is never given to another series: the greatest one that was ever defined stays in the store, and the next one follows it.

// retirement is what Dictionary keeps of series on their way out, under fresh.Mutex.
type retirement struct {
	retiring       map[SeriesRef]Hash // canonical
	forgotten, old map[SeriesRef]struct{}
	since          time.Duration // when forgotten was begun
}

// Retire says that the given series may be forgotten: no event of the log names them, nor does anything that was derived from it.
func (l *Log) Retire(refs []SeriesRef) error {
	if l.readOnly {
		return ErrReadOnly
	}
	d := l.dict
	for _, ref := range refs {
		var hash Hash
		found, err := l.store.get(seriesKey(ref), func(value []byte) error {
			hash = d.canonicalHash(value)
			return nil
		})
		if err != nil {
			return err
		}
		if !found {
			continue
		}
		stripe := &d.stripes[hash[1]%resolveStripes]
		stripe.Lock()
		d.fresh.Lock()
		if ref < d.fresh.greatest {
			if d.fresh.retiring == nil {
				d.fresh.retiring = make(map[SeriesRef]Hash)
			}
			d.fresh.retiring[ref] = hash
			d.leaving.Store(true)
		}
		d.fresh.Unlock()
		stripe.Unlock()
	}
	// From here on nobody finds them but by Resolve or by an event.
	d.fresh.Lock()
	retiring := maps.Clone(d.fresh.retiring)
	d.fresh.Unlock()
	if len(retiring) > 0 {
		d.purge(func(ref SeriesRef) bool {
			_, ok := retiring[ref]
			return ok
		})
	}
	return nil
}

// Forget removes those of the given series that are retiring, durably, and returns their number. The others, if any were retiring, are
// retiring no more.
func (l *Log) Forget(refs []SeriesRef) (int, error) {
	if l.readOnly {
		return 0, ErrReadOnly
	}
	d := l.dict
	byStripe := make(map[byte][]SeriesRef)
	d.fresh.Lock()
	for _, ref := range refs {
		if h, ok := d.fresh.retiring[ref]; ok {
			byStripe[h[1]%resolveStripes] = append(byStripe[h[1]%resolveStripes], ref)
		}
	}
	d.fresh.Unlock()
	defer d.callBackAll()
	db, err := l.store.acquire()
	if err != nil {
		return 0, err
	}
	defer l.store.release()
	n := 0
	for stripe, refs := range byStripe {
		k, err := l.forgetStripe(db, stripe, refs)
		if n += k; err != nil {
			return n, err
		}
	}
	if n == 0 {
		return 0, nil
	}
	// What is derived from the log may now forget them too, for good.
	b := db.NewBatch()
	if err := b.LogData([]byte("forgotten"), nil); err != nil {
		return n, errors.Join(err, b.Close())
	}
	if err := l.applySynced(db, b); err != nil {
		l.setPoison(err)
		return n, l.Err()
	}
	return n, b.Close()
}

// forgetStripe removes series of one stripe: under its lock nobody resolves them, and under that of fresh no event with them is
// committed.
func (l *Log) forgetStripe(db *pebble.DB, stripe byte, refs []SeriesRef) (int, error) {
	d := l.dict
	d.stripes[stripe].Lock()
	defer d.stripes[stripe].Unlock()
	d.fresh.Lock()
	defer d.fresh.Unlock()
	b := db.NewBatch()
	var errs []error
	var left []labels.Labels
	n := 0
	for _, ref := range refs {
		hash, ok := d.fresh.retiring[ref]
		if !ok {
			continue
		}
		if d.census != nil {
			_, err := d.store.get(seriesKey(ref), func(value []byte) error {
				ls, err := decodeSeries(ref, value)
				left = append(left, ls)
				return err
			})
			errs = append(errs, err)
		}
		delete(d.fresh.retiring, ref)
		d.forgottenNow(ref, l.opts.Monotonic())
		errs = append(errs, b.Delete(seriesKey(ref), nil), b.Delete(hashKey(hash), nil))
		n++
	}
	if err := errors.Join(errs...); err != nil {
		return n, errors.Join(err, b.Close())
	}
	l.guard.applying.Lock()
	defer l.guard.applying.Unlock()
	if err := l.Err(); err != nil {
		return n, errors.Join(err, b.Close())
	}
	if err := db.Apply(b, pebble.NoSync); err != nil {
		l.setPoison(err) // what is in the store is not known
		return n, l.Err()
	}
	for _, ls := range left {
		d.census.Left(ls)
	}
	return n, b.Close()
}

// forgottenNow remembers a reference that is forgotten. fresh must be locked.
func (d *Dictionary) forgottenNow(ref SeriesRef, now time.Duration) {
	r := &d.fresh.retirement
	if r.forgotten == nil || now-r.since > forgottenStay {
		r.old, r.forgotten, r.since = r.forgotten, make(map[SeriesRef]struct{}), now
	}
	r.forgotten[ref] = struct{}{}
	d.leaving.Store(true)
}

// callBackAll ends what is left of a retirement.
func (d *Dictionary) callBackAll() {
	d.fresh.Lock()
	defer d.fresh.Unlock()
	d.fresh.retiring = nil
}

// callBack notes that a series is used. fresh must be locked. It reports false if it is forgotten already.
func (d *Dictionary) callBack(ref SeriesRef) bool {
	r := &d.fresh.retirement
	delete(r.retiring, ref)
	if _, gone := r.forgotten[ref]; gone {
		return false
	}
	_, gone := r.old[ref]
	return !gone
}

// admit calls back the series that the bodies name. It fails with ErrForgotten if it comes too late for one.
func (d *Dictionary) admit(bodies []Body) error {
	if !d.leaving.Load() {
		return nil
	}
	d.fresh.Lock()
	defer d.fresh.Unlock()
	for _, body := range bodies {
		w, ok := body.(*Write)
		if !ok {
			continue
		}
		for _, ref := range w.Refs {
			if !d.callBack(ref) {
				return fmt.Errorf("%w: %d", ErrForgotten, ref)
			}
		}
		for i := range w.Exemplars {
			if !d.callBack(w.Exemplars[i].Ref) {
				return fmt.Errorf("%w: %d", ErrForgotten, w.Exemplars[i].Ref)
			}
		}
		for i := range w.Histograms {
			if !d.callBack(w.Histograms[i].Ref) {
				return fmt.Errorf("%w: %d", ErrForgotten, w.Histograms[i].Ref)
			}
		}
	}
	return nil
}

// Tidy drops the fresh series that have waited for too long for an event, and returns their number. It is to be called now and then.
func (l *Log) Tidy() int {
	d := l.dict
	now := l.opts.Monotonic()
	var old []*freshSeries
	d.fresh.Lock()
	for _, f := range d.fresh.byRef {
		if !f.defined && now-f.since > freshStay {
			old = append(old, f)
		}
	}
	r := &d.fresh.retirement
	if now-r.since > forgottenStay {
		r.old, r.forgotten, r.since = r.forgotten, nil, now
	}
	if len(r.retiring)+len(r.forgotten)+len(r.old) == 0 {
		d.leaving.Store(false)
	}
	d.fresh.Unlock()
	dropped := make(map[SeriesRef]struct{}, len(old))
	for _, f := range old {
		if d.abandon(f, now) {
			dropped[f.ref] = struct{}{}
		}
	}
	if len(dropped) > 0 {
		d.purge(func(ref SeriesRef) bool {
			_, ok := dropped[ref]
			return ok
		})
	}
	return len(dropped)
}

// abandon drops a fresh series that no event has come to use. Under its stripe nobody is about to make an alias for it.
func (d *Dictionary) abandon(f *freshSeries, now time.Duration) bool {
	stripe := &d.stripes[f.hash[1]%resolveStripes]
	stripe.Lock()
	defer stripe.Unlock()
	d.fresh.Lock()
	defer d.fresh.Unlock()
	if d.fresh.byRef[f.ref] != f || f.defined {
		return false
	}
	delete(d.fresh.byRef, f.ref)
	delete(d.fresh.byHash, f.hash)
	d.freshCount.Add(-1)
	d.forgottenNow(f.ref, now)
	if d.census != nil {
		d.census.Left(f.labels)
	}
	return true
}

// purge removes the aliases of series from the caches. Whoever has looked one of them up meanwhile has it for the epoch that ends with them.
func (d *Dictionary) purge(of func(SeriesRef) bool) {
	defer d.epoch.Add(1)
	for i := range d.shards {
		s := &d.shards[i]
		s.Lock()
		for _, m := range [...]map[Hash]SeriesRef{s.young, s.old} {
			for h, ref := range m {
				if of(ref) {
					delete(m, h)
				}
			}
		}
		for _, m := range [...]map[SeriesRef]spelling{s.spellings, s.oldSpellings} {
			for ref := range m {
				if of(ref) {
					delete(m, ref)
				}
			}
		}
		s.Unlock()
	}
}
