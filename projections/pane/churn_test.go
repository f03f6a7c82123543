package pane

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// churnSeries is how many short-lived series TestCase_B30_MemoryIsFlatUnderChurn makes. By hand: -args -churn=10000000, with -timeout 60m.
var churnSeries = flag.Int("churn", 300_000, "short-lived series of the test of flat memory")

const (
	churnBatch   = 1000    // series in a request; none ever comes again
	churnStep    = 4_000   // ms of log time between requests
	churnRetains = 120_000 // ms
	// churnSlack is how many bytes of live heap a series that has stopped may leave behind, for good. The tables by reference leave a
	// pointer for thousands; the rest of it is noise of the measurement.
	churnSlack = 12
)

// Memory does not grow with the series ever seen: millions of short-lived series, of which half are of no stream, leave as much live
// heap behind as half of them, and the buckets of those that retention has removed are in no answer and no list.
func TestCase_B30_MemoryIsFlatUnderChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a few seconds of a free machine; without -short it runs")
	}
	ctx := context.Background()
	clock := new(handClock)
	clock.ms.Store(1_000_000)
	lo := clock.options()
	lo.DictionaryCache, lo.CacheBytes, lo.TailBytes = 1000, 1<<20, 1<<20
	n, err := startNodeIn(t.TempDir(), vfs.Default, lo, Options{Workers: 2, CheckpointInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Decode(newPlan(named("m", 10_000)).Spec)
	if err != nil {
		t.Fatal(err)
	}
	p.HorizonMillis = evictionHorizon
	must(n.log.Append(ctx, &log.Plan{Spec: p.Encode()}))(t)
	churn := churner{n: n, clock: clock, stream: p.Streams[0]}
	half := *churnSeries / 2
	churn.run(ctx, t, half)
	before, residents := liveHeap(), n.index.Len()
	churn.run(ctx, t, half)
	after := liveHeap()
	t.Logf("%d series: %d KiB live after half of them, %d KiB after all; %d and %d resident", churn.made, before>>10, after>>10, residents, n.index.Len())
	if grown := after - before; grown > int64(half)*churnSlack {
		t.Errorf("%d stopped series have left %d bytes in memory", half, grown)
	}
	if got := n.index.Len(); got > 2*residents {
		t.Errorf("%d series are resident, after half of them it was %d", got, residents)
	}
	churn.check(ctx, t)
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // what finalizers have freed
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

type churner struct {
	n      *node
	clock  *handClock
	stream plan.Stream
	made   int
}

func (c *churner) run(ctx context.Context, t *testing.T, series int) {
	for until := c.made + series; c.made < until; {
		at := c.clock.ms.Add(churnStep)
		var ss []sample
		for i := range churnBatch {
			name := [...]string{"m", "other"}[i%2]
			ss = append(ss, sample{labels.FromStrings("__name__", name, "i", fmt.Sprint(c.made)), at, float64(i)})
			c.made++
		}
		must(c.n.write(ctx, ss...))(t)
		must(c.n.log.Append(ctx, &log.Tick{}))(t)
		if c.made/churnBatch%25 != 0 && c.made < until {
			continue
		}
		seq := must(c.n.log.Append(ctx, c.expired(at)))(t)
		if err := c.n.runner.Wait(ctx, seq); err != nil {
			t.Fatal(err)
		}
		if err := c.n.panes.Checkpoint(ctx); err != nil {
			t.Fatal(err)
		}
		if err := c.n.maintain(ctx); err != nil {
			t.Fatal(err)
		}
		c.n.index.Sweep()
	}
}

// expired removes what is older than churnRetains, in whole blocks as retention does.
func (c *churner) expired(at int64) *log.Expired {
	block := bucket.EndsPerBlock * c.stream.PaneMillis
	return &log.Expired{Stream: uint64(c.stream.ID), Width: c.stream.PaneMillis, Through: (at-churnRetains)/block*block - c.stream.PaneMillis}
}

// check reads what is retained, of which most is evicted, and looks for what is not.
func (c *churner) check(ctx context.Context, t *testing.T) {
	at := c.clock.ms.Load()
	through := c.expired(at).Through
	snap := must(c.n.panes.Read(ctx, []Request{{Stream: c.stream.ID, Matchers: matcher("m"), From: 0, To: c.stream.GridFloor(at + 60_000)}}))(t)
	// A series has one sample, at the log time of its request. Buckets that are still open hold series, too.
	want := 0
	for made, ts := 0, int64(1_000_000+churnStep); made < c.made; made, ts = made+churnBatch, ts+churnStep {
		if ts > through {
			want += churnBatch / 2
		}
	}
	if got := len(snap.Answers[0].Series); got != want {
		t.Errorf("%d series are read, %d have a bucket that is retained", got, want)
	}
	listed, _, err := c.n.index.LabelValues(ctx, "i", [][]*labels.Matcher{matcher("m")}, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if len(listed) != want {
		t.Errorf("%d series of the stream are listed, %d have a bucket that is retained", len(listed), want)
	}
	if want > *churnSeries/4 {
		t.Errorf("%d of %d series are retained: nothing was tried", want, *churnSeries)
	}
}
