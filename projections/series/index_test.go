package series

import (
	"context"
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
		x.Apply(&log.Event{Body: &log.Write{Defs: []log.SeriesDef{{Ref: log.SeriesRef(i), Labels: sets[i]}}}})
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
	x.Apply(&log.Event{Body: &log.Write{Defs: []log.SeriesDef{{Ref: 3, Labels: labels.FromStrings("__name__", "other")}}}})
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
		x.Apply(&log.Event{Body: &log.Write{Defs: []log.SeriesDef{{Ref: log.SeriesRef(i + 1), Labels: ls}}}})
	}
	ctx := context.Background()
	eq := func(n, v string) []*labels.Matcher {
		return []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, n, v)}
	}
	both := [][]*labels.Matcher{eq("job", "y"), eq("__name__", "a"), eq("job", "x")}
	series, err := x.Series(ctx, both, 10)
	if got := fmt.Sprint(series, err); got != `[{__name__="a", job="y", z="1"} {__name__="b", job="x"}] <nil>` {
		t.Error(got)
	}
	names, err := x.LabelNames(ctx, both, 2)
	if got := fmt.Sprint(names, err); got != `[__name__ job] <nil>` {
		t.Error(got)
	}
	all, err := x.LabelNames(ctx, nil, 10)
	if got := fmt.Sprint(all, err); got != `[__name__ job z] <nil>` {
		t.Error(got)
	}
	values, err := x.LabelValues(ctx, "job", [][]*labels.Matcher{eq("__name__", "b"), eq("__name__", "c")}, 10)
	if got := fmt.Sprint(values, err); got != `[x] <nil>` {
		t.Error(got)
	}
	values, err = x.LabelValues(ctx, "__name__", nil, 2)
	if got := fmt.Sprint(values, err); got != `[a b] <nil>` {
		t.Error(got)
	}
}
