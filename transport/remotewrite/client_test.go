package remotewrite

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
)

// What Encode sends is what the generated encoder would send.
func TestEncode_EqualsPrompb(t *testing.T) {
	series := []Series{
		{Labels: labels.FromStrings("__name__", "m", "i", "x"), Samples: []Sample{{Time: 1000, Value: 1}, {}, {Time: -5, Value: -2.5}}},
		{Labels: labels.FromStrings("__name__", "n"), Samples: nil},
		{Labels: labels.FromStrings("__name__", "long", "v", string(bytes.Repeat([]byte("y"), 300))), Samples: []Sample{{Time: 1}}},
	}
	req := &prompb.WriteRequest{}
	for _, s := range series {
		ts := prompb.TimeSeries{Labels: prompb.FromLabels(s.Labels, nil)}
		for _, x := range s.Samples {
			ts.Samples = append(ts.Samples, prompb.Sample{Value: x.Value, Timestamp: x.Time})
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	if got, want := encode(nil, series), marshal(t, req); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestClient_Write(t *testing.T) {
	r := newRig(t, nil)
	c := Client{URL: r.url(), HTTP: r.server.Client()}
	series := []Series{{Labels: labels.FromStrings("__name__", "m"), Samples: []Sample{{Time: 1000, Value: 1, Start: 500}}}}
	if err := c.Write(context.Background(), series); err != nil {
		t.Fatal(err)
	}
	if got, want := r.show(), "#1\n  {__name__=\"m\"} 1@1000+500\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	r.gate.set(&Unavailable{Reason: "disk is below its reserve", RetryAfter: 7 * time.Second})
	var status *StatusError
	if err := c.Write(context.Background(), series); !errors.As(err, &status) ||
		*status != (StatusError{http.StatusServiceUnavailable, 7 * time.Second, "disk is below its reserve"}) {
		t.Error(err)
	}
	r.server.Close()
	if err := c.Write(context.Background(), series); err == nil || errors.As(err, &status) {
		t.Errorf("without a server: %v", err)
	}
}
