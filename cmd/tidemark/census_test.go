package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// writeSeries sends one sample of each label set and returns the status and what was said.
func (s *site) writeSeries(at int64, sets ...labels.Labels) (int, string) {
	s.t.Helper()
	var series []remotewrite.Series
	for _, ls := range sets {
		series = append(series, remotewrite.Series{Labels: ls, Samples: []remotewrite.Sample{{Time: at, Value: 1}}})
	}
	c := remotewrite.Client{URL: s.url() + "/api/v1/write", HTTP: s.http}
	err := c.Write(context.Background(), series)
	var status *remotewrite.StatusError
	switch {
	case err == nil:
		return http.StatusNoContent, ""
	case errors.As(err, &status):
		return status.Code, status.Message
	}
	s.t.Fatal(err)
	return 0, ""
}

// TestCase_A44_LimitsOfExperiments holds that new series and experiments beyond the limits are refused, with what is within them
// written; that what is known goes on, under any spelling and after a restart; and that series without an experiment are free.
func TestCase_A44_LimitsOfExperiments(t *testing.T) {
	s := newSite(t, "", "--log.level=warn", "--write.max-series-per-experiment=3", "--write.max-experiments=2")
	p := s.serveReady()
	of := func(experiment string, i int) labels.Labels {
		return labels.FromStrings("__name__", "m", "experiment", experiment, "i", fmt.Sprint(i))
	}
	check := func(at int64, want int, text string, sets ...labels.Labels) {
		t.Helper()
		if code, said := s.writeSeries(at, sets...); code != want || !strings.Contains(said, text) {
			t.Errorf("%v: %d %s, want %d %s", sets, code, said, want, text)
		}
	}
	check(1_000, 204, "", of("a", 1), of("a", 2), of("a", 3), of("b", 1))
	check(2_000, 400, `2 of 3 samples written, 1 rejected; 1 of 3 series refused; first fault: experiment "a" has as many series as it may, the limit is 3`, of("a", 4), of("a", 1), of("b", 2))
	check(3_000, 400, `1 of 2 samples written, 1 rejected; 1 of 2 series refused; first fault: experiment "c" is new, and there are as many as there may be, the limit is 2`, of("c", 1), labels.FromStrings("__name__", "free"))
	check(4_000, 204, "", of("a", 1), of("a", 2), of("a", 3))
	if n := s.metric(`tidemark_write_samples_rejected_total{reason="experiment_series_limit"}`); n != 1 {
		t.Errorf("%g samples refused", n)
	}
	if n := s.metric(`tidemark_write_samples_rejected_total{reason="experiments_limit"}`); n != 1 {
		t.Errorf("%g samples refused", n)
	}
	s.stop(p)
	p = s.serveReady()
	check(5_000, 204, "", of("a", 1), of("a", 2), of("a", 3), of("b", 2))
	next := 5
	poll(t, readyWithin, "the count of what was there", func() (bool, string) {
		next++ // one that comes before the count is done is known from then on
		code, said := s.writeSeries(6_000, of("a", next))
		return code == 400, said
	})
	s.stop(p)
}
