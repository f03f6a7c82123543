package remotewrite

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/zeebo/xxh3"

	"tidemark/log"
)

// Whatever requests follow one another, a series is found as what it is or not at all, and found where it was before.
func TestOrderFindsWhatWasThere(t *testing.T) {
	hash := func(n int) log.Hash { return xxh3.HashString128(strconv.Itoa(n)).Bytes() }
	var r recall
	var o order
	written := map[int]bool{}
	ask := func(epoch uint64, request []int) (searched int) {
		o.begin(&r, epoch)
		for _, n := range request {
			want := log.SeriesRef(n)
			got := o.follow(hash(n))
			if got == 0 {
				searched++
				if n%97 == 0 {
					want = 0 // the series is refused
				} else if written[n] {
					o.missed()
				}
			} else if got != want {
				t.Fatalf("series %d was found as %d", n, got)
			}
			o.note(hash(n), want)
			written[n] = want != 0
		}
		o.end()
		return searched
	}
	series := make([]int, 200)
	for i := range series {
		series[i] = 1 + i + i/96 // none is refused
	}
	if n := ask(1, series); n != 200 || len(r.young) > 0 {
		t.Errorf("%d searched of 200 that were never seen; %d led to the request, which may be the last of them", n, len(r.young))
	}
	if n := ask(1, series); n != 200 || len(r.young) == 0 {
		t.Errorf("%d searched of 200 that came once; %d lead to the request now", n, len(r.young))
	}
	for range 2 {
		if n := ask(1, series); n != 0 {
			t.Errorf("%d searched of 200 that were seen in this order", n)
		}
	}
	if n := ask(1, series[:150]); n != 0 {
		t.Errorf("%d searched of the first 150", n)
	}
	// Batches of a stream of samples, which begin at another series each time.
	stream := slices.Concat(series, series, series)
	searched := 0
	for from := range 200 {
		searched += ask(1, stream[from:from+100])
	}
	if searched > 200*100/10 {
		t.Errorf("%d searched of 100 from each of 200 on", searched)
	}
	less := slices.Delete(slices.Clone(series), 70, 71)
	if n := ask(1, less); n != 0 {
		t.Errorf("%d searched where one of 200 has gone", n)
	}
	more := slices.Insert(slices.Clone(less), 30, 1000)
	if n := ask(1, more); n < 1 || n > 4*anchorEvery {
		t.Errorf("%d searched where one has come", n)
	}
	if n := ask(2, more); n != len(more) {
		t.Errorf("%d searched of %d in another epoch", n, len(more))
	}
	if n := ask(2, more); n != 0 {
		t.Errorf("%d searched once they were seen in it", n)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		request := slices.Clone(more)
		for range rng.IntN(6) {
			switch at := rng.IntN(len(request)); rng.IntN(3) {
			case 0:
				request = slices.Delete(request, at, min(at+rng.IntN(4), len(request)))
			case 1:
				request = slices.Insert(request, at, 1+rng.IntN(2000), request[0])
			default:
				request[at], request[0] = request[0], request[at]
			}
			if len(request) == 0 {
				request = []int{5}
			}
		}
		ask(uint64(rng.IntN(2)), request)
	}
}

// What is remembered of requests is bounded by their series, and the latest of them is there.
func TestRecallIsBounded(t *testing.T) {
	var r recall
	series := make([]knownSeries, maxRecalled/8)
	latest := func(n int) bool {
		p, ok := r.find(log.Hash{byte(n), 1}, 1)
		return ok && p.at == 0 && len(p.in.series) == len(series)
	}
	for n := range 40 {
		series[0].hash = log.Hash{byte(n), 1}
		r.keep(1, series)
		if !latest(n) {
			t.Fatalf("request %d is not remembered", n)
		}
	}
	held := map[*sequence]int{}
	for _, g := range []map[log.Hash]place{r.young, r.old} {
		for _, p := range g {
			held[p.in] = len(p.in.series)
		}
	}
	total := 0
	for _, n := range held {
		total += n
	}
	if total > 2*maxRecalled || r.held > maxRecalled {
		t.Errorf("%d series are held, %d of them of the young generation", total, r.held)
	}
	r.keep(1, series[:leastRecalled-1])
	if !latest(39) {
		t.Error("a few series took the place of many")
	}
}

// Series that were forgotten, retired, or never written since the last request are resolved again, whatever is remembered of it.
func TestRecalledSeriesMayBeForgotten(t *testing.T) {
	const count = 40
	r := newRig(t, nil)
	request := func(at int64) []byte {
		var all []Series
		for i := range count {
			all = append(all, Series{Labels: labels.FromStrings("__name__", "m", "i", fmt.Sprint(i)), Samples: []Sample{{Time: at, Value: float64(i)}}})
		}
		return snappy.Encode(nil, encode(nil, all))
	}
	write := func(at int64) []log.SeriesRef {
		t.Helper()
		if got := r.post(request(at)); got.code != http.StatusNoContent {
			t.Fatal(got)
		}
		all := r.writes()
		w := all[len(all)-1].Body.(*log.Write)
		for i, ref := range w.Refs {
			if ls, ok, err := r.events.Dictionary().Labels(ref); !ok || err != nil || ls.Get("__name__") != "m" {
				t.Fatalf("series %d of the event, %d, is %v, %v", i, ref, ls, err)
			}
		}
		return w.Refs
	}
	first := write(1000)
	if again := write(2000); !slices.Equal(again, first) {
		t.Fatalf("%v were %v", again, first)
	}
	gone := slices.Clone(first[:10])
	if err := r.events.Retire(gone); err != nil {
		t.Fatal(err)
	}
	if n, err := r.events.Forget(gone); n != 10 || err != nil {
		t.Fatal(n, err)
	}
	now := write(3000)
	if len(now) != count {
		t.Fatalf("%d series of %d", len(now), count)
	}
	for _, ref := range gone {
		if slices.Contains(now, ref) {
			t.Errorf("%d was forgotten and is used", ref)
		}
	}
	// Retired and written meanwhile: it stays.
	if err := r.events.Retire(now[:5]); err != nil {
		t.Fatal(err)
	}
	if again := write(4000); !slices.Equal(again, now) {
		t.Fatalf("%v were %v", again, now)
	}
	if n, err := r.events.Forget(now[:5]); n != 0 || err != nil {
		t.Errorf("%d that are in use were forgotten (%v)", n, err)
	}
}
