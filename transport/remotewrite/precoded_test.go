package remotewrite

import (
	"bytes"
	"math"
	"testing"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
)

// A request made of precoded label sets is byte for byte the one that Encode makes.
func TestPrecodedIsEncode(t *testing.T) {
	sets := []labels.Labels{
		labels.FromStrings("__name__", "m", "a", "1"), labels.FromStrings("__name__", "n"), labels.FromStrings("__name__", "m", "a", "1"),
		labels.FromStrings("__name__", "long", "v", string(bytes.Repeat([]byte("x"), 300))),
	}
	samples := []Sample{
		{}, {Time: 1, Value: math.Inf(1)}, {Time: math.MinInt64, Value: math.NaN(), Start: math.MinInt64}, {Time: 1_700_000_000_000, Value: 0.1},
	}
	var series []Series
	var body []byte
	for i, ls := range sets {
		series = append(series, Series{Labels: ls, Samples: []Sample{samples[i]}})
		body = AppendSeries(body, Precode(ls), samples[i])
	}
	if want := encode(nil, series); !bytes.Equal(body, want) {
		t.Fatalf("got %x\nwant %x", body, want)
	}
	into := make([]byte, 0, 1<<10)
	sent := Compress(into, body)
	if &sent[0] != &into[:1][0] {
		t.Error("the memory that was given is not used")
	}
	if back, err := snappy.Decode(nil, sent); err != nil || !bytes.Equal(back, body) {
		t.Fatalf("decompressed: %x, %v", back, err)
	}
}
