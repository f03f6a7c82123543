package query

import "math"

// check says why the answer a of stream s does not prove every window of l complete, or returns nil (Q2). With live, windows that
// are not published are no miss: the answer has what is in open buckets, too, and the steps are noted.
//
// A window (e−R, e] is published when e−R is not before the stream's coverage, e is not beyond its frontier, and no series
// of the answer has an open bucket that overlaps it. Buckets that lost late samples, or hold native histograms, make a
// window unanswerable for good.
func (l *leaf) check(a *Answer, live *liveSteps) *MissError {
	times := l.dataTimes()
	if times.count() == 0 {
		return nil
	}
	if a.Materializing {
		return l.miss(ReasonMaterializing, "the stream is still being folded from the log")
	}
	if !a.Known {
		return l.miss(ReasonNoMaterialization, "the plan has just dropped the stream")
	}
	first, last := times.start, times.last()
	if a.CoverageStart == math.MaxInt64 {
		return l.miss(ReasonBeforeRetention, "nothing was written yet")
	}
	if a.CoverageStart != math.MinInt64 && first-l.window < a.CoverageStart {
		return l.miss(ReasonBeforeRetention, "the window ending at %d begins before the coverage at %d", first, a.CoverageStart)
	}
	switch {
	case live != nil:
		l.note(a, live)
	case last > a.Frontier:
		if a.Frontier == math.MinInt64 {
			return l.miss(ReasonUnpublished, "nothing is closed yet")
		}
		return l.miss(ReasonUnpublished, "the window ending at %d lies beyond the frontier at %d", last, a.Frontier)
	}
	for i := range a.Series {
		s := &a.Series[i]
		if end, ok := l.overlapped(times, s.Histograms); ok {
			return l.miss(ReasonNativeHistogram, "%s has native histograms in the bucket ending at %d", s.Labels, end)
		}
		if end, ok := l.overlapped(times, s.Incomplete); ok {
			return l.miss(ReasonLateUncorrectable, "%s lost late samples in the bucket ending at %d", s.Labels, end)
		}
		if live != nil {
			continue
		}
		if end, ok := l.overlapped(times, s.Open); ok {
			return l.miss(ReasonUnpublished, "%s has an open bucket ending at %d", s.Labels, end)
		}
	}
	return nil
}

// overlapped finds a bucket, given by its end, of which a window of l at one of times takes a part. Times and ends are on
// one grid, so the bucket ending at b overlaps (e−R, e] exactly when e−R < b ≤ e.
func (l *leaf) overlapped(times steps, ends []int64) (int64, bool) {
	for _, b := range ends {
		e := times.start
		if b > e {
			e += (b - e + times.every - 1) / times.every * times.every // the first time at or after b
		}
		if e <= times.end && e-l.window < b {
			return b, true
		}
	}
	return 0, false
}
