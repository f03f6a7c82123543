package accum

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// oracle is Prometheus' engine over one series in memory.
type oracle struct {
	engine *promql.Engine
}

const testLookback = 5 * time.Minute

func newOracle(t testing.TB) *oracle {
	t.Helper()
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples:           100_000_000,
		Timeout:              time.Minute,
		LookbackDelta:        testLookback,
		EnableAtModifier:     true,
		EnableNegativeOffset: true,
		Parser:               parser.NewParser(parser.Options{EnableExperimentalFunctions: true}),
	})
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return &oracle{engine: engine}
}

// run returns the value at each step that has one, and the messages of the annotations.
func (o *oracle) run(t testing.TB, expr string, ts []int64, vs []float64, start, end, step int64) (map[int64]float64, []error) {
	t.Helper()
	samples := make([]chunks.Sample, len(ts))
	for i := range ts {
		samples[i] = floatSample{t: ts[i], v: vs[i]}
	}
	series := storage.NewListSeries(labels.FromStrings(model.MetricNameLabel, "m"), samples)
	q, err := o.engine.NewRangeQuery(context.Background(), oneSeries{series}, nil, expr,
		time.UnixMilli(start), time.UnixMilli(end), time.Duration(step)*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	res := q.Exec(context.Background())
	if res.Err != nil {
		t.Fatalf("%s: %v", expr, res.Err)
	}
	matrix, err := res.Matrix()
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[int64]float64)
	for _, s := range matrix {
		for _, p := range s.Floats {
			out[p.T] = p.F
		}
	}
	return out, res.Warnings.AsErrors()
}

// floatSample is a sample as Prometheus' storage hands it out.
type floatSample struct {
	t int64
	v float64
}

func (s floatSample) T() int64                      { return s.t }
func (s floatSample) ST() int64                     { return 0 }
func (s floatSample) F() float64                    { return s.v }
func (s floatSample) H() *histogram.Histogram       { return nil }
func (s floatSample) FH() *histogram.FloatHistogram { return nil }
func (s floatSample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s floatSample) Copy() chunks.Sample           { return s }

// oneSeries is a Queryable that holds one series, whatever is asked for.
type oneSeries struct{ series storage.Series }

func (s oneSeries) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
		return &oneSeriesSet{series: s.series}
	}}, nil
}

type oneSeriesSet struct {
	series storage.Series
	done   bool
}

func (s *oneSeriesSet) Next() bool {
	next := !s.done
	s.done = true
	return next
}

func (s *oneSeriesSet) At() storage.Series                { return s.series }
func (s *oneSeriesSet) Err() error                        { return nil }
func (s *oneSeriesSet) Warnings() annotations.Annotations { return nil }

var stale = math.Float64frombits(value.StaleNaN)

// kinds of random series.
const (
	kindCounter = iota
	kindInteger
	kindDecimal
	kindFloat
	kindConstant
	kindMagnitudes // from 1e-300 to 1e300, of both signs
	kindHuge       // where sums overflow
	kindHugeCounter
	kindSmallest // subnormal
	numKinds
)

// randomSeries returns n samples in (0, …), about every interval ms, with gaps, and with odd values at the given rate.
func randomSeries(r *rand.Rand, kind, n int, interval int64, odd float64) ([]int64, []float64) {
	ts, vs := make([]int64, 0, n), make([]float64, 0, n)
	t, v := r.Int64N(interval)+1, 0.0
	if kind == kindConstant {
		v = float64(r.IntN(1000)) / 8
	}
	for range n {
		ts = append(ts, t)
		if r.Float64() < odd {
			vs = append(vs, oddValue(r))
		} else {
			v = nextValue(r, kind, v)
			vs = append(vs, v)
		}
		t += interval
		switch r.IntN(20) {
		case 0, 1:
			t += r.Int64N(interval) - interval/2
		case 2:
			t += interval * r.Int64N(8)
		}
	}
	return ts, vs
}

func nextValue(r *rand.Rand, kind int, v float64) float64 {
	switch kind {
	case kindCounter:
		if r.IntN(25) == 0 {
			return float64(r.IntN(10))
		}
		return v + float64(r.IntN(1000))
	case kindInteger:
		return float64(r.IntN(2_000_001) - 1_000_000)
	case kindDecimal:
		return float64(r.IntN(1_000_000)) / pow10(r.IntN(maxScale+1))
	case kindFloat:
		return r.NormFloat64()
	case kindConstant:
		if r.IntN(10) == 0 {
			return v + 1
		}
		return v
	case kindMagnitudes:
		return r.NormFloat64() * math.Pow(10, float64(r.IntN(601)-300))
	case kindHuge:
		return [...]float64{math.MaxFloat64, -math.MaxFloat64, 1e308, -1e308, 9e307, 1, 1e290}[r.IntN(7)]
	case kindHugeCounter:
		if r.IntN(10) == 0 {
			return 0
		}
		return min(math.MaxFloat64, v*2+r.Float64()*1e307)
	default:
		return float64(r.IntN(100)) * math.SmallestNonzeroFloat64
	}
}

func oddValue(r *rand.Rand) float64 {
	switch r.IntN(8) {
	case 0:
		return math.NaN()
	case 1:
		return math.Float64frombits(0x7ff8_0000_0000_0000 | r.Uint64N(1<<40)) // NaN with a payload
	case 2:
		return math.Float64frombits(0xfff0_0000_0000_0001 + r.Uint64N(1<<40)) // negative NaN, signalling
	case 3:
		return math.Inf(1)
	case 4:
		return math.Inf(-1)
	case 5:
		return math.Copysign(0, -1)
	default:
		return stale
	}
}

// cutIntoPanes puts the samples in (start, end] into a window by way of bytes, cut at random.
func cutIntoPanes(t testing.TB, r *rand.Rand, ts []int64, vs []float64, start, end int64) Window {
	t.Helper()
	whole := Window{T: ts, V: vs}
	var out Window
	for from := start; from < end; {
		to := end
		if r.IntN(6) > 0 {
			to = from + 1 + r.Int64N(end-from)
		}
		part := whole.Cut(from, to)
		p := Fold(part.T, part.V)
		b := p.AppendEncode(nil, to)
		if n, err := AppendDecoded(&out, b, to); err != nil || n != len(b) {
			t.Fatalf("decoded %d of %d bytes: %v", n, len(b), err)
		}
		from = to
	}
	return out
}

// query is one leaf in both forms.
type query struct {
	f      Func
	arg    float64
	offset int64
}

func (q query) expr(rng int64) string {
	sel := fmt.Sprintf("m[%dms]", rng)
	off := ""
	if q.offset != 0 {
		off = fmt.Sprintf(" offset %dms", q.offset)
	}
	switch q.f {
	case Instant:
		return "m" + off
	case Timestamp:
		return "timestamp(m" + off + ")"
	case Quantile:
		return fmt.Sprintf("quantile_over_time(%g, %s%s)", q.arg, sel, off)
	case PredictLinear:
		return fmt.Sprintf("predict_linear(%s%s, %g)", sel, off, q.arg)
	default:
		return fmt.Sprintf("%s(%s%s)", q.f, sel, off)
	}
}

func allQueries() []query {
	qs := []query{
		{f: Quantile, arg: 0}, {f: Quantile, arg: 0.5}, {f: Quantile, arg: 0.95}, {f: Quantile, arg: 1},
		{f: Quantile, arg: -1}, {f: Quantile, arg: 1.5}, {f: Quantile, arg: math.NaN()},
		{f: PredictLinear, arg: 3600}, {f: PredictLinear, arg: -7.5, offset: 60_000},
		{f: Rate, offset: 45_000},
	}
	for i := 1; i < numFuncs; i++ {
		if f := Func(i); f != Quantile && f != PredictLinear && f != Absent {
			qs = append(qs, query{f: f})
		}
	}
	return qs
}

// check compares what Eval returned with what the engine says.
func check(q query, ts []int64, vs []float64, start, end int64, got float64, ok bool, want float64, wantOK, exactly bool) error {
	if ok != wantOK {
		return fmt.Errorf("present: %v, want %v (%v, want %v)", ok, wantOK, got, want)
	}
	if !ok {
		return nil
	}
	switch q.f {
	case Count, Min, Max, First, Last, Present, Instant:
		if math.Float64bits(got) != math.Float64bits(want) {
			return fmt.Errorf("%v (%#x), want %v (%#x)", got, math.Float64bits(got), want, math.Float64bits(want))
		}
		return nil
	case Resets, Changes, Timestamp, Quantile, Mad:
		exactly = true
	case Avg:
		exactly = false
	}
	if got == want || math.IsNaN(got) && math.IsNaN(want) {
		return nil
	}
	if exactly || !isFinite(got) || !isFinite(want) {
		return fmt.Errorf("%v, want exactly %v", got, want)
	}
	// Scaled, so that neither the difference nor the sum of terms overflows.
	const scale = 0x1p-64
	bound := 1e-12 * max(math.Abs(got)*scale, math.Abs(want)*scale, terms(q.f, ts, vs, start, end, scale))
	if diff := math.Abs(got*scale - want*scale); !(diff <= bound) {
		return fmt.Errorf("%v, want %v: difference %g, bound %g", got, want, diff/scale, bound/scale)
	}
	return nil
}

// terms is Σ|terms| of the contract, for the functions that add.
func terms(f Func, ts []int64, vs []float64, start, end int64, scale float64) float64 {
	sum, n, corrections := 0.0, 0, 0.0
	var first, last, prev Sample
	for i, v := range vs {
		if value.IsStaleNaN(v) {
			continue
		}
		if n == 0 {
			first = Sample{ts[i], v}
		} else if v < prev.V {
			corrections += math.Abs(prev.V) * scale
		}
		prev = Sample{ts[i], v}
		last = prev
		sum += math.Abs(v) * scale
		n++
	}
	if f == Rate || f == Increase || f == Delta {
		sum = (math.Abs(first.V) + math.Abs(last.V)) * scale
		if f != Delta {
			sum += corrections
		}
		sum *= float64(end-start) / float64(last.T-first.T)
	}
	if math.IsInf(sum, 0) || math.IsNaN(sum) {
		return 0 // then nothing but the very value will do
	}
	switch f {
	case Sum:
		return sum
	case Avg:
		return sum / float64(n)
	case Increase, Delta:
		return sum
	case Rate:
		return sum / (float64(end-start) / 1000)
	default:
		return 0
	}
}
