package api

import (
	"math"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// goldenValue is one answer whose bytes stand in testdata/prometheus-3.16.golden under its name.
type goldenValue struct {
	name            string
	value           parser.Value
	warnings, infos []string
}

// goldenValues are results of every kind with everything in them that has ever been written differently by someone.
func goldenValues() []goldenValue {
	up := labels.FromStrings("__name__", "up", "instance", "localhost:9090", "job", "prometheus")
	odd := labels.FromStrings("__name__", "odd", "a", `<b>&'"\`, "b", "\n\r\t\b\f\x00\x1f\x7f", "c", "é日本\u2028\u2029𝄞", "d with.dots", "x", "é<&>\"\n", "y")
	var points []promql.FPoint
	for _, t := range []int64{0, 1, 60, 100, 999, 1000, 60_000, 60_050, 60_100, 1435781451781, -1, -1500, -1000, math.MaxInt64} {
		points = append(points, promql.FPoint{T: t, F: float64(t)})
	}
	var floats []promql.FPoint
	for i, f := range []float64{
		0, math.Copysign(0, -1), 1, -1, 0.1, 1e-6, 9.99e-7, 1e-7, 1e20, 9.99e20, 1e21, 1e22, -1e21, 1.5e300, 5e-324, math.MaxFloat64,
		math.Pi, 1.0 / 3, math.NaN(), math.Inf(1), math.Inf(-1), 123456789012345680,
	} {
		floats = append(floats, promql.FPoint{T: int64(i) * 15_000, F: f})
	}
	exp := &histogram.FloatHistogram{
		Schema: 1, Count: 42, Sum: 34593.34, ZeroThreshold: 0.001, ZeroCount: 2,
		PositiveSpans: []histogram.Span{{Offset: 0, Length: 2}, {Offset: 3, Length: 2}}, PositiveBuckets: []float64{3, 12, 0, 21},
		NegativeSpans: []histogram.Span{{Offset: -1, Length: 2}}, NegativeBuckets: []float64{1, 3},
	}
	custom := &histogram.FloatHistogram{
		Schema: histogram.CustomBucketsSchema, Count: 10, Sum: -1.25e-9, CustomValues: []float64{1, 5, 25},
		PositiveSpans: []histogram.Span{{Offset: 0, Length: 4}}, PositiveBuckets: []float64{1, 2, 3, 4},
	}
	empty := &histogram.FloatHistogram{}
	return []goldenValue{
		{name: "vector of none", value: promql.Vector{}},
		{name: "vector nil", value: promql.Vector(nil)},
		{name: "vector of one", value: promql.Vector{{Metric: up, T: 1435781451781, F: 1}}},
		{name: "vector without labels", value: promql.Vector{{Metric: labels.EmptyLabels(), T: 0, F: math.NaN()}}},
		{name: "vector of odd labels", value: promql.Vector{{Metric: odd, T: -1500, F: 1e21}, {Metric: up, T: 60_050, F: math.Inf(-1)}}},
		{name: "vector of histograms", value: promql.Vector{{Metric: up, T: 60_000, H: exp}, {Metric: odd, T: 1, H: custom}, {Metric: up, T: 2, H: empty}}},
		{name: "matrix of none", value: promql.Matrix{}},
		{name: "matrix nil", value: promql.Matrix(nil)},
		{name: "matrix of times", value: promql.Matrix{{Metric: up, Floats: points}}},
		{name: "matrix of values", value: promql.Matrix{{Metric: up, Floats: floats}, {Metric: odd, Floats: floats[:1]}}},
		{name: "matrix of histograms", value: promql.Matrix{{Metric: up, Histograms: []promql.HPoint{{T: 1, H: exp}, {T: 2, H: custom}}}}},
		{name: "matrix of both", value: promql.Matrix{{Metric: up, Floats: floats[:2], Histograms: []promql.HPoint{{T: 60_100, H: empty}}}}},
		{name: "matrix of an empty series", value: promql.Matrix{{Metric: up}}},
		{name: "scalar", value: promql.Scalar{T: 1435781451781, V: 1}},
		{name: "scalar with a short fraction", value: promql.Scalar{T: 60_050, V: 0.1}},
		{name: "scalar large", value: promql.Scalar{T: 0, V: 1e300}},
		{name: "scalar small", value: promql.Scalar{T: -1500, V: 5e-324}},
		{name: "scalar NaN", value: promql.Scalar{T: 1000, V: math.NaN()}},
		{name: "scalar Inf", value: promql.Scalar{T: 1000, V: math.Inf(1)}},
		{name: "scalar late", value: promql.Scalar{T: math.MaxInt64, V: 1}},
		{name: "string", value: promql.String{T: 60_050, V: "plain"}},
		{name: "string odd", value: promql.String{T: 1, V: "<b>&\"\\\n\b\f\x01\x7f é\u2028 \xff"}},
		{
			name: "warnings and infos", value: promql.Vector{},
			warnings: []string{`PromQL warning: bucket label "le" is <missing> & odd`, "two\n\u2028\xff"}, infos: []string{"PromQL info: <rate>"},
		},
		{name: "infos only", value: promql.Scalar{T: 0, V: 2}, infos: []string{"info"}},
	}
}
