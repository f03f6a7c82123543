// Package series is the index of label sets as queries read it: label set ↔ reference, and selectors answered by postings.
//
// Life cycle: an Index is filled from the log's dictionary at start (Load) and by the definitions that write events carry
// (Apply). Both are idempotent. It holds no file of its own: everything in it is in the log.
//
// Invariants.
//
//	S1  A reference that was applied has its label set for good; references are never rebound.
//	S2  Apply is called with events in log order by one goroutine; readers run beside it and see a definition whole or not at all.
//	S3  A series that Len counts is found by every Select that begins later.
package series

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/index"

	"tidemark/log"
)

// pageSize is the number of label sets on one page of the reference table.
const pageSize = 1024

// Index maps references to label sets and answers selectors. The zero value is not usable; see New.
type Index struct {
	postings *index.MemPostings

	mu    sync.RWMutex
	pages []*[pageSize]labels.Labels // by ref / pageSize; nil where nothing is defined
	added []log.SeriesRef            // in the order in which they came
}

// New returns an empty index.
func New() *Index {
	return &Index{postings: index.NewMemPostings()}
}

// Dictionary is where Load finds the durable definitions, in increasing order of reference.
type Dictionary interface {
	All(yield func(log.SeriesRef, labels.Labels) bool) error
}

// Load adds every definition of the dictionary.
func (x *Index) Load(d Dictionary) error {
	if err := d.All(func(ref log.SeriesRef, ls labels.Labels) bool {
		x.add(ref, ls)
		return true
	}); err != nil {
		return fmt.Errorf("series: load dictionary: %w", err)
	}
	return nil
}

// Apply adds the definitions that an event carries.
func (x *Index) Apply(ev *log.Event) {
	w, ok := ev.Body.(*log.Write)
	if !ok {
		return
	}
	for i := range w.Defs {
		x.add(w.Defs[i].Ref, w.Defs[i].Labels)
	}
}

// add defines ref once (S1).
func (x *Index) add(ref log.SeriesRef, ls labels.Labels) {
	x.mu.Lock()
	p := int(ref / pageSize)
	for len(x.pages) <= p {
		x.pages = append(x.pages, nil)
	}
	if x.pages[p] == nil {
		x.pages[p] = new([pageSize]labels.Labels)
	}
	known := !x.pages[p][ref%pageSize].IsEmpty()
	if !known {
		x.pages[p][ref%pageSize] = ls
	}
	x.mu.Unlock()
	if known {
		return
	}
	x.postings.Add(storage.SeriesRef(ref), ls)
	x.mu.Lock()
	x.added = append(x.added, ref) // last: who counts it finds it (S3)
	x.mu.Unlock()
}

// Labels returns the label set of ref; false if it was never defined.
func (x *Index) Labels(ref log.SeriesRef) (labels.Labels, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	p := int(ref / pageSize)
	if p >= len(x.pages) || x.pages[p] == nil {
		return labels.EmptyLabels(), false
	}
	ls := x.pages[p][ref%pageSize]
	return ls, !ls.IsEmpty()
}

// Len returns the number of series.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return len(x.added)
}

// Since returns the series that came after the first n, in the order in which they came. The result must not be changed.
func (x *Index) Since(n int) []log.SeriesRef {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.added[n:len(x.added):len(x.added)]
}

// Select returns the references whose label sets match all matchers, increasing.
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
	var refs []log.SeriesRef
	for p.Next() {
		refs = append(refs, log.SeriesRef(p.At()))
	}
	if err := p.Err(); err != nil {
		return nil, fmt.Errorf("series: select: %w", err)
	}
	return refs, ctx.Err()
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

// union returns the references that match any of the sets of matchers, increasing; all of them without a set.
func (x *Index) union(ctx context.Context, sets [][]*labels.Matcher) ([]log.SeriesRef, error) {
	if len(sets) == 0 {
		return x.Select(ctx)
	}
	var all []log.SeriesRef
	for _, ms := range sets {
		refs, err := x.Select(ctx, ms...)
		if err != nil {
			return nil, err
		}
		all = append(all, refs...)
	}
	if len(sets) > 1 {
		slices.Sort(all)
		all = slices.Compact(all)
	}
	return all, nil
}

// Series returns the label sets that match any of the sets of matchers, in order, at most limit of them.
func (x *Index) Series(ctx context.Context, sets [][]*labels.Matcher, limit int) ([]labels.Labels, error) {
	refs, err := x.union(ctx, sets)
	if err != nil {
		return nil, err
	}
	out := make([]labels.Labels, 0, len(refs))
	for _, ref := range refs {
		if ls, ok := x.Labels(ref); ok {
			out = append(out, ls)
		}
	}
	slices.SortFunc(out, labels.Compare)
	return out[:min(limit, len(out))], nil
}

// LabelNames returns the label names of the series that match any of the sets of matchers, in order, at most limit of them.
func (x *Index) LabelNames(ctx context.Context, sets [][]*labels.Matcher, limit int) ([]string, error) {
	names := x.postings.LabelNames()
	if len(sets) > 0 {
		refs, err := x.union(ctx, sets)
		if err != nil {
			return nil, err
		}
		seen := make(map[string]struct{})
		for _, ref := range refs {
			ls, _ := x.Labels(ref)
			ls.Range(func(l labels.Label) { seen[l.Name] = struct{}{} })
		}
		names = slices.Collect(maps.Keys(seen))
	}
	slices.Sort(names)
	return names[:min(limit, len(names))], nil
}

// LabelValues returns the values that one label has in the series that match any of the sets of matchers, in order, at most
// limit of them.
func (x *Index) LabelValues(ctx context.Context, name string, sets [][]*labels.Matcher, limit int) ([]string, error) {
	values := x.postings.LabelValues(ctx, name, nil)
	if len(sets) > 0 {
		refs, err := x.union(ctx, sets)
		if err != nil {
			return nil, err
		}
		seen := make(map[string]struct{})
		for _, ref := range refs {
			ls, _ := x.Labels(ref)
			if v := ls.Get(name); v != "" {
				seen[v] = struct{}{}
			}
		}
		values = slices.Collect(maps.Keys(seen))
	}
	slices.Sort(values)
	return values[:min(limit, len(values))], ctx.Err()
}
