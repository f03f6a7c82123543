package accum

// Func is a leaf function: what is read out of one series' window.
type Func uint8

// The leaf functions. Instant and Timestamp read the newest sample of the window, as an instant selector does; the
// others are PromQL's range functions. Absent is absent_over_time's share of one series: 1 where the series has a sample,
// and the caller turns "no series has one" into the result.
const (
	Rate Func = iota + 1
	Increase
	Delta
	Irate
	Idelta
	Resets
	Changes
	Sum
	Count
	Avg
	Min
	Max
	Last
	First
	Present
	Absent
	Quantile
	Deriv
	Stddev
	Stdvar
	Mad
	PredictLinear
	Instant
	Timestamp

	numFuncs = int(Timestamp) + 1
)

// String returns PromQL's name of the function, "instant" for an instant selector.
func (f Func) String() string {
	switch f {
	case Rate:
		return "rate"
	case Increase:
		return "increase"
	case Delta:
		return "delta"
	case Irate:
		return "irate"
	case Idelta:
		return "idelta"
	case Resets:
		return "resets"
	case Changes:
		return "changes"
	case Sum:
		return "sum_over_time"
	case Count:
		return "count_over_time"
	case Avg:
		return "avg_over_time"
	case Min:
		return "min_over_time"
	case Max:
		return "max_over_time"
	case Last:
		return "last_over_time"
	case First:
		return "first_over_time"
	case Present:
		return "present_over_time"
	case Absent:
		return "absent_over_time"
	case Quantile:
		return "quantile_over_time"
	case Deriv:
		return "deriv"
	case Stddev:
		return "stddev_over_time"
	case Stdvar:
		return "stdvar_over_time"
	case Mad:
		return "mad_over_time"
	case PredictLinear:
		return "predict_linear"
	case Instant:
		return "instant"
	case Timestamp:
		return "timestamp"
	default:
		return "unknown"
	}
}

// FuncByName returns the leaf function of that PromQL name. An instant selector has no name: use Instant.
func FuncByName(promqlName string) (Func, bool) {
	for i := 1; i < numFuncs; i++ {
		if f := Func(i); f != Instant && f.String() == promqlName {
			return f, true
		}
	}
	return 0, false
}

// NeedsSamples says that the function cannot be read from Columns: Eval then returns ErrNeedsSamples.
func (f Func) NeedsSamples() bool {
	switch f {
	case Deriv, Stddev, Stdvar, Mad, PredictLinear:
		return true
	default:
		return false
	}
}

// KeepsName says that results keep the metric name; those of the other functions drop it.
func (f Func) KeepsName() bool {
	return f == Last || f == First || f == Instant
}

// ExpectsCounter says that the engine adds the info "metric might not be a counter" for a series whose name does not end
// in _total, _sum, _count or _bucket. It does so only where the series has at least one result (Eval's ok) in the query.
func (f Func) ExpectsCounter() bool {
	return f == Rate || f == Increase
}

// ExpectsQuantile says that the engine adds the warning "quantile value should be between 0 and 1" for an argument that
// is outside (NaN included). It does so only where a series has a sample in a window.
func (f Func) ExpectsQuantile() bool {
	return f == Quantile
}
