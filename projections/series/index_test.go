package series

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

func fill(n int, rng *rand.Rand) (*Index, []labels.Labels) {
	x := New()
	sets := make([]labels.Labels, n+1)
	for i := 1; i <= n; i++ {
		b := labels.NewScratchBuilder(4)
		b.Add("__name__", fmt.Sprintf("m%d", rng.IntN(5)))
		if rng.IntN(3) > 0 {
			b.Add("job", fmt.Sprintf("j%d", rng.IntN(4)))
		}
		if rng.IntN(2) > 0 {
			b.Add("z", fmt.Sprintf("%d", rng.IntN(30)))
		}
		b.Add("id", fmt.Sprint(i))
		b.Sort()
		sets[i] = b.Labels()
		x.Add(log.SeriesRef(i), sets[i])
	}
	return x, sets
}

// Every combination of matchers gives what a walk over all label sets gives.
func TestSelectEqualsScan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	x, sets := fill(500, rng)
	pool := []*labels.Matcher{
		labels.MustNewMatcher(labels.MatchEqual, "__name__", "m1"),
		labels.MustNewMatcher(labels.MatchNotEqual, "__name__", "m1"),
		labels.MustNewMatcher(labels.MatchRegexp, "__name__", "m[12]"),
		labels.MustNewMatcher(labels.MatchRegexp, "__name__", "m1|m3"),
		labels.MustNewMatcher(labels.MatchNotRegexp, "job", "j[12]"),
		labels.MustNewMatcher(labels.MatchRegexp, "job", "j1|"),
		labels.MustNewMatcher(labels.MatchRegexp, "job", "(j1|j2)?"),
		labels.MustNewMatcher(labels.MatchEqual, "job", ""),
		labels.MustNewMatcher(labels.MatchNotEqual, "job", ""),
		labels.MustNewMatcher(labels.MatchRegexp, "z", ".*"),
		labels.MustNewMatcher(labels.MatchRegexp, "z", ".+"),
		labels.MustNewMatcher(labels.MatchNotRegexp, "z", ".+"),
		labels.MustNewMatcher(labels.MatchRegexp, "z", "1.*"),
		labels.MustNewMatcher(labels.MatchEqual, "absent", "x"),
		labels.MustNewMatcher(labels.MatchNotEqual, "absent", "x"),
	}
	for range 2000 {
		var ms []*labels.Matcher
		for range rng.IntN(4) {
			ms = append(ms, pool[rng.IntN(len(pool))])
		}
		var want []log.SeriesRef
	next:
		for i := 1; i < len(sets); i++ {
			for _, m := range ms {
				if !m.Matches(sets[i].Get(m.Name)) {
					continue next
				}
			}
			want = append(want, log.SeriesRef(i))
		}
		got, err := x.Select(context.Background(), ms...)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v: got %d series, want %d", ms, len(got), len(want))
		}
	}
}

// S1: a definition that comes again, as after a restart, changes nothing.
func TestS1_DefinitionsAreIdempotent(t *testing.T) {
	x, sets := fill(10, rand.New(rand.NewPCG(3, 4)))
	x.Add(3, labels.FromStrings("__name__", "other"))
	if ls, ok := x.Labels(3); !ok || !labels.Equal(ls, sets[3]) || x.Len() != 10 {
		t.Fatalf("got %v %v, %d series", ls, ok, x.Len())
	}
	if _, ok := x.Labels(11); ok {
		t.Fatal("an undefined reference has labels")
	}
	refs, err := x.Select(context.Background(), labels.MustNewMatcher(labels.MatchEqual, "__name__", "other"))
	if err != nil || len(refs) != 0 {
		t.Fatal(refs, err)
	}
}

// Lists are the union over the sets of matchers, each entry once, in order, and bounded.
func TestLists(t *testing.T) {
	x := New()
	for i, ls := range []labels.Labels{
		labels.FromStrings("__name__", "b", "job", "x"), labels.FromStrings("__name__", "a", "job", "y", "z", "1"),
		labels.FromStrings("__name__", "c"),
	} {
		x.Add(log.SeriesRef(i+1), ls)
	}
	ctx := context.Background()
	eq := func(n, v string) []*labels.Matcher {
		return []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, n, v)}
	}
	both := [][]*labels.Matcher{eq("job", "y"), eq("__name__", "a"), eq("job", "x")}
	series, _, err := x.Series(ctx, both, 10)
	if got := fmt.Sprint(series, err); got != `[{__name__="a", job="y", z="1"} {__name__="b", job="x"}] <nil>` {
		t.Error(got)
	}
	names, _, err := x.LabelNames(ctx, both, 2)
	if got := fmt.Sprint(names, err); got != `[__name__ job] <nil>` {
		t.Error(got)
	}
	all, _, err := x.LabelNames(ctx, nil, 10)
	if got := fmt.Sprint(all, err); got != `[__name__ job z] <nil>` {
		t.Error(got)
	}
	values, _, err := x.LabelValues(ctx, "job", [][]*labels.Matcher{eq("__name__", "b"), eq("__name__", "c")}, 10)
	if got := fmt.Sprint(values, err); got != `[x] <nil>` {
		t.Error(got)
	}
	values, _, err = x.LabelValues(ctx, "__name__", nil, 2)
	if got := fmt.Sprint(values, err); got != `[a b] <nil>` {
		t.Error(got)
	}
}

// Lists leave out series whose names belong to somebody else, resident or not; selections do not.
func TestShade(t *testing.T) {
	ctx := t.Context()
	x := New()
	d := dictionary{1: labels.FromStrings("__name__", "a", "i", "1"), 2: labels.FromStrings("__name__", "b", "i", "2"), 3: labels.FromStrings("__name__", "b", "j", "3")}
	for ref := log.SeriesRef(1); ref <= 3; ref++ {
		x.Add(ref, d[ref])
	}
	if err := x.Load(d); err != nil {
		t.Fatal(err)
	}
	x.Keep(stored{3})
	x.Evict([]log.SeriesRef{3})
	names := []string{"c", "b"}
	x.Shade(func() []string { return names })
	any := [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchNotEqual, "__name__", "")}}
	for range 2 { // with b resident, and with none of the names resident
		all, _, err := x.Series(ctx, nil, 10)
		matched, _, err2 := x.Series(ctx, any, 10)
		words, _, err3 := x.LabelNames(ctx, nil, 10)
		values, _, err4 := x.LabelValues(ctx, "__name__", nil, 10)
		got := fmt.Sprint(all, matched, words, values, errors.Join(err, err2, err3, err4))
		if want := `[{__name__="a", i="1"}] [{__name__="a", i="1"}] [__name__ i] [a] <nil>`; got != want {
			t.Errorf("got %s", got)
		}
		x.Keep(stored{2, 3})
		x.Evict([]log.SeriesRef{2})
	}
	x.Add(2, d[2])
	if refs, err := x.Select(ctx, any[0]...); err != nil || len(refs) != 2 {
		t.Error(refs, err)
	}
	names = nil // the rule is gone
	if all, _, err := x.Series(ctx, nil, 10); err != nil || len(all) != 3 {
		t.Error(all, err)
	}
}

// A list looks at so many series that are not resident and no more, and says so.
func TestListsAreCut(t *testing.T) {
	ctx := t.Context()
	x, d := New(), dictionary{}
	var all stored
	for ref := log.SeriesRef(1); ref <= 20; ref++ {
		d[ref] = labels.FromStrings("__name__", "m", "i", fmt.Sprint(ref), fmt.Sprintf("l%d", ref), "x")
		all = append(all, ref, ref) // each counts once
	}
	if err := x.Load(d); err != nil {
		t.Fatal(err)
	}
	x.Keep(all)
	for _, most := range []int{19, 20} {
		x.mostStored = most
		series, cut, err := x.Series(ctx, nil, 100)
		names, cut2, err2 := x.LabelNames(ctx, nil, 100)
		values, cut3, err3 := x.LabelValues(ctx, "i", nil, 100)
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
		want := most < 20
		if cut != want || cut2 != want || cut3 != want || len(series) != most || len(names) != most+2 || len(values) != most {
			t.Errorf("at most %d: %d series, %t, %d names, %t, %d values, %t", most, len(series), cut, len(names), cut2, len(values), cut3)
		}
	}
}

// dictionary is a map of label sets, as the log keeps them.
type dictionary map[log.SeriesRef]labels.Labels

func (d dictionary) Labels(ref log.SeriesRef) (labels.Labels, bool, error) {
	ls, ok := d[ref]
	return ls, ok, nil
}

// stored are series that are not resident and have buckets.
type stored []log.SeriesRef

func (s stored) Stored(_ context.Context, yield func(log.SeriesRef) error) error {
	for _, ref := range s {
		if err := yield(ref); err != nil {
			return err
		}
	}
	return nil
}

// S3, S4: an evicted series is no longer selected and its memory goes; lists have it while it is stored, and its label set is found.
func TestS3_S4_Eviction(t *testing.T) {
	ctx := context.Background()
	x, sets := fill(3000, rand.New(rand.NewPCG(5, 6)))
	d := make(dictionary)
	var gone []log.SeriesRef
	for i := 1; i <= 3000; i++ {
		d[log.SeriesRef(i)] = sets[i]
		if i > 10 {
			gone = append(gone, log.SeriesRef(i))
		}
	}
	if err := x.Load(d); err != nil {
		t.Fatal(err)
	}
	follower := x.Follow()
	x.Evict(gone)
	refs, err := x.Select(ctx)
	if err != nil || len(refs) != 10 || x.Len() != 10 {
		t.Fatalf("%d series are left, Len is %d: %v", len(refs), x.Len(), err)
	}
	if ls, ok, err := x.Find(3000); err != nil || !ok || !labels.Equal(ls, sets[3000]) {
		t.Fatal(ls, ok, err)
	}
	if _, ok := x.Labels(3000); ok {
		t.Fatal("an evicted series is resident")
	}
	// One comes back before the sweep, and one after it. A low reference behind a high one is no disorder.
	x.Add(20, sets[20])
	x.Sweep()
	x.Add(11, sets[11])
	if got := follower.Added(); !slices.Equal(got, []log.SeriesRef{20, 11}) {
		t.Fatalf("the follower was told of %v", got)
	}
	follower.End()
	if follower.Added() != nil || x.tail != nil {
		t.Fatal("a follower that has ended is remembered")
	}
	refs, err = x.Select(ctx, labels.MustNewMatcher(labels.MatchRegexp, "id", "5|11|20|21"))
	if err != nil || !slices.Equal(refs, []log.SeriesRef{5, 11, 20}) {
		t.Fatal(refs, err)
	}
	used := 0
	for _, p := range x.entries.list {
		if p != nil {
			used += p.used
		}
	}
	if used != 12 || len(x.gone) != 0 {
		t.Fatalf("%d entries are held for 12 series, %d wait", used, len(x.gone))
	}
	values, _, err := x.LabelValues(ctx, "id", nil, 100)
	if err != nil || len(values) != 12 {
		t.Fatal(values, err)
	}
	x.Keep(stored{30, 11, 30, 31})
	values, _, err = x.LabelValues(ctx, "id", nil, 100)
	if err != nil || len(values) != 14 {
		t.Fatal(values, err)
	}
	all, _, err := x.Series(ctx, [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchRegexp, "id", "11|30|31|32")}}, 100)
	if err != nil || len(all) != 3 {
		t.Fatal(all, err)
	}
}

// The cache of label sets that are not resident is bounded.
func TestS4_LabelCacheIsBounded(t *testing.T) {
	c := newLabelCache(100)
	for i := range 10_000 {
		c.put(log.SeriesRef(i+1), labels.FromStrings("i", fmt.Sprint(i)))
		c.get(1)
	}
	if n := len(c.young) + len(c.old); n > 200 {
		t.Fatalf("%d label sets are cached", n)
	}
	if _, ok := c.get(1); !ok {
		t.Fatal("what is asked for all the time was forgotten")
	}
}

// endless are stored series that never end, and go away with whoever asked.
type endless struct {
	after int
	leave context.CancelFunc
	asked int
}

func (e *endless) Stored(_ context.Context, yield func(log.SeriesRef) error) error {
	for {
		if e.asked++; e.asked == e.after {
			e.leave()
		}
		if err := yield(1); err != nil {
			return err
		}
	}
}

// A list over however many stored series ends soon after whoever asked has gone, or had no more time.
func TestListsEndWithTheirContext(t *testing.T) {
	x := New()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	e := &endless{after: 1000, leave: cancel}
	x.Keep(e)
	if _, _, err := x.LabelNames(ctx, nil, 10); !errors.Is(err, context.Canceled) || e.asked > e.after+checkEvery {
		t.Errorf("%v after %d series", err, e.asked)
	}
}
