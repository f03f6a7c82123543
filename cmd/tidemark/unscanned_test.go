package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

type unscannedExperiment struct {
	listedExperiment
	Unscanned bool
	AsOf      uint64 `json:"as_of_seq"`
}

// An experiment is there with its first acknowledged sample, and back with the first after its retirement, whether it was scanned since or
// not: the detail counts what was acknowledged and says that the table does not have it, and reading it writes nothing. The list stays
// the table of one scan. Only a name that was never written is not found.
func TestM6_AnExperimentExistsWithItsFirstSample(t *testing.T) {
	c := startControl(t, "1ms")
	now := time.Now().UnixMilli()
	read := func(query string) unscannedExperiment {
		t.Helper()
		var x unscannedExperiment
		if code := c.ask(http.MethodGet, "/api/v1/experiments/new%2Fone"+query, nil, &x); code != http.StatusOK {
			t.Fatalf("%q: %d", query, code)
		}
		return x
	}
	for _, query := range []string{"", "?fresh=true"} {
		if code := c.ask(http.MethodGet, "/api/v1/experiments/new%2Fone"+query, nil, nil); code != http.StatusNotFound {
			t.Fatalf("before its first sample: %d", code)
		}
	}
	want := func(what string, unscanned bool, state string, samples uint64, pending, listed int) {
		t.Helper()
		head := c.list("state=all").Head
		for _, query := range []string{"", "?fresh=true"} {
			if x := read(query); x.Unscanned != unscanned || x.State != state || x.Samples != samples || x.Pending != pending {
				t.Errorf("%s, %q: %+v", what, query, x)
			}
		}
		if l := c.list("state=all"); l.Head != head || l.Total != listed {
			t.Errorf("%s: %d are listed, and the log has %d events, not %d", what, l.Total, l.Head, head)
		}
	}
	c.write(now, "new/one")
	want("written", true, "hot", 1, 1, 0)
	if code := c.ask(http.MethodPost, "/api/v1/experiments/new%2Fone/rescan", nil, nil); code != http.StatusOK {
		t.Fatalf("rescan: %d", code)
	}
	want("read anew", false, "hot", 1, 1, 1)
	c.barrier(now + 20_000)
	c.rescan()
	want("retired", false, "retired", 1, 0, 1)
	c.write(now+30_000, "new/one")
	want("returned", true, "hot", 2, 1, 1)
	if l := c.list("state=all"); l.Experiments[0].State != "retired" {
		t.Errorf("the table has changed without a scan: %+v", l)
	}
	c.rescan()
	want("scanned", false, "hot", 2, 1, 1)
}

// A barrier for an experiment of which nobody has heard succeeds, because nothing is wrong with it, and says so; one that is known,
// retired ones too, gets no such word. The command prints it.
func TestBarrierForAnUnknownExperiment(t *testing.T) {
	c := startControl(t, "1ms")
	now := time.Now().UnixMilli()
	c.write(now, "known")
	said := func(form url.Values) string {
		t.Helper()
		res, err := http.PostForm(c.srv.url+"/api/v1/precompute/watermark", form)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var b bytes.Buffer
		if _, err := b.ReadFrom(res.Body); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%v: %d %s", err, res.StatusCode, b.String())
		}
		return b.String()
	}
	at := func(experiment string, ms int64) url.Values {
		return url.Values{"experiment": {experiment}, "time_ms": {fmt.Sprint(ms)}}
	}
	if got := said(at("nosuch", now)); !strings.Contains(got, `no experiment \"nosuch\" is known`) {
		t.Errorf("nosuch: %s", got)
	}
	for i := range 2 {
		if got := said(at("known", now)); strings.Contains(got, "warnings") {
			t.Errorf("known, %d: %s", i, got)
		}
	}
	c.barrier(now + 20_000)
	c.rescan()
	if x := c.detail("known"); x.State != "retired" {
		t.Fatalf("%+v", x)
	}
	if got := said(at("known", now)); strings.Contains(got, "warnings") {
		t.Errorf("retired: %s", got)
	}
	if got := said(at("known", now+30*60_000)); !strings.Contains(got, "--write.max-future") {
		t.Errorf("half an hour ahead: %s", got)
	}
	if got := said(url.Values{"time_ms": {fmt.Sprint(now + 30*60_000)}}); !strings.Contains(got, "--write.max-future") {
		t.Errorf("half an hour ahead: %s", got)
	}
	var stdout, stderr bytes.Buffer
	if code := execute(t.Context(), []string{"watermark", "--url", c.srv.url, "--time-ms", "now", "--experiment", "nosuch"}, &stdout, &stderr); code != 0 ||
		!strings.Contains(stdout.String(), `warning: no experiment "nosuch" is known`) {
		t.Errorf("%d: %s%s", code, stdout.String(), stderr.String())
	}
}
