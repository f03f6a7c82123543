package series

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// union returns the resident series that match any of the sets of matchers, increasing; all of them without a set.
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

// names returns the names of series that lists leave out, sorted.
func (x *Index) names() []string {
	if x.foreign == nil {
		return nil
	}
	return slices.Sorted(slices.Values(x.foreign()))
}

// shaded says whether there is a resident series that lists leave out.
func (x *Index) shaded(ctx context.Context, names []string) bool {
	return len(names) > 0 && x.postings.Postings(ctx, model.MetricNameLabel, names...).Next()
}

// own returns visit for all series but those of the given names.
func own(names []string, visit func(labels.Labels)) func(labels.Labels) {
	if len(names) == 0 {
		return visit
	}
	return func(ls labels.Labels) {
		if _, foreign := slices.BinarySearch(names, ls.Get(model.MetricNameLabel)); !foreign {
			visit(ls)
		}
	}
}

// each calls visit with the label set of every series that matches any of the sets of matchers, resident or stored, each once.
// Series that become resident meanwhile are met, too.
func (x *Index) each(ctx context.Context, sets [][]*labels.Matcher, visit func(labels.Labels)) error {
	visit = own(x.names(), visit)
	f := x.Follow() // first: a stored series that comes back meanwhile is one or the other
	defer f.End()
	refs, err := x.union(ctx, sets)
	if err != nil {
		return err
	}
	for _, ref := range refs {
		ls, ok, err := x.Find(ref) // it may have been evicted since
		if err != nil {
			return err
		}
		if ok {
			visit(ls)
		}
	}
	return x.others(ctx, f, refs, sets, visit)
}

// MaxStored is the number of series that are not resident which one list looks at: each may have to be read from disk.
const MaxStored = 500_000

// errCut says that there are more series than one list looks at.
var errCut = errors.New("series: too many series that are not resident")

// uncut tells whether a list was cut from other errors.
func uncut(err error) (cut bool, other error) {
	if errors.Is(err, errCut) {
		return true, nil
	}
	return false, err
}

// checkEvery is the number of stored series between two looks at the context: each may have to be read from disk.
const checkEvery = 256

// others is the part of each that is not resident, and what has become resident since f began; without a set of matchers all match.
func (x *Index) others(ctx context.Context, f *Follower, refs []log.SeriesRef, sets [][]*labels.Matcher, visit func(labels.Labels)) error {
	seen := make(map[log.SeriesRef]struct{})
	asked := 0
	meet := func(ref log.SeriesRef) error {
		if asked++; asked%checkEvery == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if _, met := slices.BinarySearch(refs, ref); met {
			return nil
		}
		if _, met := seen[ref]; met {
			return nil
		}
		if len(seen) >= x.mostStored {
			return errCut
		}
		ls, ok, err := x.Find(ref)
		if err != nil {
			return err
		}
		seen[ref] = struct{}{}
		if ok && (len(sets) == 0 || slices.ContainsFunc(sets, func(ms []*labels.Matcher) bool { return MatchAll(ls, ms) })) {
			visit(ls)
		}
		return nil
	}
	if x.stored != nil {
		if err := x.stored.Stored(ctx, meet); err != nil {
			return fmt.Errorf("series: stored series: %w", err)
		}
	}
	for _, ref := range f.Added() {
		if err := meet(ref); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// Series returns the label sets that match any of the sets of matchers, in order, at most limit of them. cut says that some may be
// missing because there are more than MaxStored series that are not resident; so it does of the other lists.
func (x *Index) Series(ctx context.Context, sets [][]*labels.Matcher, limit int) (list []labels.Labels, cut bool, err error) {
	list = []labels.Labels{}
	if cut, err = uncut(x.each(ctx, sets, func(ls labels.Labels) { list = append(list, ls) })); err != nil {
		return nil, false, err
	}
	slices.SortFunc(list, labels.Compare)
	return list[:min(limit, len(list))], cut, nil
}

// LabelNames returns the label names of the series that match any of the sets of matchers, in order, at most limit of them.
func (x *Index) LabelNames(ctx context.Context, sets [][]*labels.Matcher, limit int) (list []string, cut bool, err error) {
	seen := make(map[string]struct{})
	visit := func(ls labels.Labels) {
		ls.Range(func(l labels.Label) { seen[l.Name] = struct{}{} })
	}
	if len(sets) > 0 {
		err = x.each(ctx, sets, visit)
	} else {
		err = x.all(ctx, seen, x.postings.LabelNames, visit)
	}
	if cut, err = uncut(err); err != nil {
		return nil, false, err
	}
	return ordered(seen, limit), cut, nil
}

// LabelValues returns the values that one label has in the series that match any of the sets of matchers, in order, at most
// limit of them.
func (x *Index) LabelValues(ctx context.Context, name string, sets [][]*labels.Matcher, limit int) (list []string, cut bool, err error) {
	seen := make(map[string]struct{})
	visit := func(ls labels.Labels) {
		if v := ls.Get(name); v != "" {
			seen[v] = struct{}{}
		}
	}
	if len(sets) > 0 {
		err = x.each(ctx, sets, visit)
	} else {
		err = x.all(ctx, seen, func() []string { return x.postings.LabelValues(ctx, name, nil) }, visit)
	}
	if cut, err = uncut(err); err != nil {
		return nil, false, err
	}
	return ordered(seen, limit), cut, nil
}

// all gathers words of every series there is: those of the resident ones from the postings, where each stands once.
func (x *Index) all(ctx context.Context, seen map[string]struct{}, resident func() []string, visit func(labels.Labels)) error {
	f := x.Follow()
	defer f.End()
	x.Sweep() // what is gone has no word
	names := x.names()
	if x.shaded(ctx, names) {
		return x.each(ctx, nil, visit)
	}
	for _, w := range resident() {
		seen[w] = struct{}{}
	}
	return x.others(ctx, f, nil, nil, own(names, visit))
}

func ordered(set map[string]struct{}, limit int) []string {
	out := slices.AppendSeq(make([]string, 0, len(set)), maps.Keys(set))
	slices.Sort(out)
	return out[:min(limit, len(out))]
}
