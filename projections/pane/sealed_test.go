package pane

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/projections/bucket"
)

// A run that seals what is closed holds, finds and drops what one that never does.
func TestSealedRunIsTheSameRun(t *testing.T) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range 200 {
		var sealing, plain run
		clock := int64(rng.IntN(1000)) - 500
		for range 300 {
			clock += 1 + rng.Int64N(20)
			at := clock
			if rng.IntN(8) == 0 {
				at -= rng.Int64N(400)
			}
			v := [...]float64{1, 2.5, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Float64frombits(staleBits), rng.NormFloat64()}[rng.IntN(7)]
			i, have := sealing.find(at)
			j, had := plain.find(at)
			if have != had {
				t.Fatalf("a sample at %d is found: %v, without sealing: %v", at, have, had)
			}
			if !have {
				sealing.insert(i, at, v)
				plain.insert(j, at, v)
			}
			switch rng.IntN(6) {
			case 0:
				cut := clock - rng.Int64N(500)
				sealing.dropThrough(cut)
				plain.dropThrough(cut)
			case 1:
				sealing.shared = rng.IntN(2) == 0
			default:
				sealing.seal(clock - rng.Int64N(60))
			}
			if rng.IntN(10) > 0 {
				continue
			}
			e := encoder{}
			e.run(&sealing)
			d := decoder{b: e.b}
			if sealing = d.run(); d.err != nil || len(d.b) > 0 {
				t.Fatal(d.err, len(d.b))
			}
			from, to := clock-rng.Int64N(500), clock-rng.Int64N(100)
			if rng.IntN(3) == 0 {
				from, to = math.MinInt64, math.MaxInt64
			}
			gotT, gotV := sealing.between(from, max(from, to))
			wantT, wantV := plain.between(from, max(from, to))
			if !slices.Equal(gotT, wantT) || !slices.EqualFunc(gotV, wantV, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }) {
				t.Fatalf("(%d, %d]: %v %v, want %v %v", from, to, gotT, gotV, wantT, wantV)
			}
		}
	}
}

// What is cut or makes no sense is refused, not read beyond.
func FuzzDecodeRun(f *testing.F) {
	var r run
	for i := range int64(20) {
		r.insert(len(r.t), i*15_000, float64(i))
	}
	r.seal(150_000)
	e := encoder{}
	e.run(&r)
	f.Add(e.b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := decoder{b: b}
		r := d.run()
		if d.err != nil {
			return
		}
		r.open()
		for i := 1; i < len(r.t); i++ {
			if r.t[i] <= r.t[i-1] {
				t.Fatalf("times are out of order at %d: %v", i, r.t)
			}
		}
	})
}

// A window of raw samples takes a few bytes each: 200 a series at 15 s are aimed at, beside the room for what is open.
func TestTailIsCompact(t *testing.T) {
	var r run
	for i := range int64(400) {
		r.insert(len(r.t), i*15_000+7, 1000+float64(i*3)/4)
		r.seal((i - 4) * 15_000)
		r.dropThrough((i - 44) * 15_000)
	}
	if bytes := cap(r.old.b); r.old.n < 30 || bytes > 8*r.old.n {
		t.Errorf("%d sealed samples take %d bytes", r.old.n, bytes)
	}
	if len(r.t) > 4+2*sealAt || cap(r.t) > 32 {
		t.Errorf("%d samples are not sealed, in room for %d", len(r.t), cap(r.t))
	}
}

// Records and lists of evicted series: what is cut is refused.
func TestEvictedSurvivesTheStore(t *testing.T) {
	ctx := testContext(t)
	n := mustNode(t, vfs.NewMem(), Options{Workers: 1, CheckpointInterval: -1})
	e := bucket.Evicted{Ref: 65, Seq: 7, Group: 9, Streams: []bucket.EvictedStream{
		{Stream: 3, Closed: -5}, {Stream: 4, Closed: math.MinInt64 + 1, Holds: true, First: -7, Last: 2},
	}}
	if err := n.store.Commit(bucket.Checkpoint{Shard: 1, Seq: 9, State: NewShard(1, n.index).Encode(), Evicted: []bucket.Evicted{e}}); err != nil {
		t.Fatal(err)
	}
	got, ok, err := n.store.Evicted(65)
	if err != nil || !ok || got.Seq != 7 || len(got.Streams) != 2 || got.Streams[1].Closed != math.MinInt64+1 {
		t.Fatal(got, ok, err)
	}
	for _, c := range []struct {
		from, to int64
		group    uint32
		want     int
	}{{-7, -7, 9, 1}, {-100, -8, 9, 0}, {2, 5, 9, 1}, {3, 5, 9, 0}, {-7, 2, 8, 0}} {
		found := 0
		if err := n.store.EvictedIn(ctx, 4, c.from, c.to, nil, &c.group, func(shard int, ref uint64) error {
			if shard != 1 || ref != 65 {
				t.Errorf("series %d of shard %d", ref, shard)
			}
			found++
			return nil
		}); err != nil || found != c.want {
			t.Errorf("%+v: %d found, %v", c, found, err)
		}
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
}
