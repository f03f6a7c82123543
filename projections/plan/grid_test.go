package plan

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestPL3_BoundaryTable holds who owns an edge, and which buckets a barrier closes, for the bucket between 100 s and 110 s.
func TestPL3_BoundaryTable(t *testing.T) {
	const start, end, width = 100_000, 110_000, 10_000
	for _, tc := range []struct {
		closed Membership
		t      int64
		end    int64 // of the bucket that owns t
		closes bool  // a barrier at t closes the bucket that ends at 110 s
	}{
		{Right, start, start, false},
		{Right, start + 1, end, false},
		{Right, end - 2, end, false},
		{Right, end - 1, end, false},
		{Right, end, end, true},
		{Right, end + 1, end + width, true},

		{Left, start - 1, start, false},
		{Left, start, end, false},
		{Left, end - 2, end, false},
		{Left, end - 1, end, true},
		{Left, end, end + width, true},
		{Left, end + 1, end + width, true},
	} {
		s := Stream{PaneMillis: width, Closed: tc.closed}
		if got := s.BucketEnd(tc.t); got != tc.end {
			t.Errorf("%s: the bucket of %d ends at %d, want %d", tc.closed, tc.t, got, tc.end)
		}
		if got := s.BucketStart(tc.t); got != tc.end-width {
			t.Errorf("%s: the bucket of %d starts at %d, want %d", tc.closed, tc.t, got, tc.end-width)
		}
		if got := end <= s.BarrierBound(tc.t); got != tc.closes {
			t.Errorf("%s: a barrier at %d closes the bucket: %v, want %v", tc.closed, tc.t, got, tc.closes)
		}
	}
}

// TestCase_C15_NegativeTimes: division rounds down below zero too.
func TestCase_C15_NegativeTimes(t *testing.T) {
	for _, tc := range []struct {
		closed          Membership
		t, width, start int64
	}{
		{Right, 0, 60_000, -60_000},
		{Right, 1, 60_000, 0},
		{Right, -1, 60_000, -60_000},
		{Right, -60_000, 60_000, -120_000},
		{Right, -60_001, 60_000, -120_000},
		{Right, -59_999, 60_000, -60_000},
		{Right, -86_398_000, 10_000, -86_400_000},
		{Left, 0, 60_000, 0},
		{Left, -1, 60_000, -60_000},
		{Left, -60_000, 60_000, -60_000},
		{Left, -60_001, 60_000, -120_000},
	} {
		s := Stream{PaneMillis: tc.width, Closed: tc.closed}
		if got := s.BucketStart(tc.t); got != tc.start {
			t.Errorf("%s: the %dms bucket of %d starts at %d, want %d", tc.closed, tc.width, tc.t, got, tc.start)
		}
		if got := s.BucketEnd(tc.t); got != tc.start+tc.width {
			t.Errorf("%s: the %dms bucket of %d ends at %d, want %d", tc.closed, tc.width, tc.t, got, tc.start+tc.width)
		}
	}
}

// TestPL3_EndsOfInt64: edges beyond int64 saturate instead of wrapping around.
func TestPL3_EndsOfInt64(t *testing.T) {
	right := Stream{PaneMillis: 60_000, Closed: Right}
	left := Stream{PaneMillis: 60_000, Closed: Left, OriginMillis: MaxTimeMillis}
	for _, s := range []Stream{right, left} {
		if got := s.BucketEnd(math.MaxInt64); got != math.MaxInt64 {
			t.Errorf("%s: end %d", s.Closed, got)
		}
		if got := s.BucketStart(math.MinInt64); got != math.MinInt64 {
			t.Errorf("%s: start %d", s.Closed, got)
		}
		if got := s.GridFloor(math.MinInt64); got != math.MinInt64 {
			t.Errorf("%s: floor %d", s.Closed, got)
		}
		if got := s.BarrierBound(math.MaxInt64); got != math.MaxInt64 {
			t.Errorf("%s: bound %d", s.Closed, got)
		}
		if got := s.FilingTime(math.MinInt64); got != math.MinInt64 {
			t.Errorf("%s: filing time %d", s.Closed, got)
		}
	}
}

// TestPL3_EveryTimeHasOneBucket compares the arithmetic with big integers, for every time, width and origin.
func TestPL3_EveryTimeHasOneBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Stream{
			PaneMillis:   rapid.Int64Range(MinPaneMillis, MaxDurationMillis).Draw(t, "width"),
			OriginMillis: rapid.Int64Range(-MaxTimeMillis, MaxTimeMillis).Draw(t, "origin"),
			Closed:       rapid.SampledFrom([]Membership{Right, Left}).Draw(t, "closed"),
		}
		at := rapid.Int64Range(-MaxTimeMillis, MaxTimeMillis).Draw(t, "t")
		start, end := s.BucketStart(at), s.BucketEnd(at)

		f := big.NewInt(at)
		if s.Closed == Right {
			f.Sub(f, big.NewInt(1))
		}
		width, origin := big.NewInt(s.PaneMillis), big.NewInt(s.OriginMillis)
		want := new(big.Int).Sub(f, origin)
		want.Div(want, width) // Euclidean: rounds down for a positive divisor
		want.Mul(want, width).Add(want, origin)
		if want.Cmp(big.NewInt(start)) != 0 || end-start != s.PaneMillis {
			t.Fatalf("bucket of %d is [%d, %d], want it to start at %d", at, start, end, want)
		}
		inside := start < at && at <= end
		if s.Closed == Left {
			inside = start <= at && at < end
		}
		if !inside || !s.OnGrid(start) || !s.OnGrid(end) {
			t.Fatalf("%d is not inside its bucket [%d, %d], or those are no edges", at, start, end)
		}
		floor := s.GridFloor(at)
		if floor > at || at-floor >= s.PaneMillis || !s.OnGrid(floor) || s.OnGrid(at) != (floor == at) {
			t.Fatalf("the edge before %d is %d", at, floor)
		}
	})
}
