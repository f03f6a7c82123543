package remotewrite

// data path 1 of 6: decode and check.

import (
	"math"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

// maxTimestamp bounds timestamps on both sides, in ms: beyond it JSON readers lose digits.
const maxTimestamp = 1 << 53

// clock judges timestamps for the length of a request.
type clock struct {
	latest int64 // ms
	ahead  int64 // ms; how latest was found, for messages
}

func (h *Handler) clock() clock {
	if h.opts.MaxFuture == 0 {
		return clock{latest: math.MaxInt64}
	}
	ahead := h.opts.MaxFuture.Milliseconds()
	return clock{latest: h.opts.Now().UnixMilli() + ahead, ahead: ahead}
}

// judge returns why a timestamp is refused, or reasonNone.
func (c clock) judge(t int64) Reason {
	switch {
	case t > maxTimestamp || t < -maxTimestamp:
		return ReasonTimeRange
	case t > c.latest:
		return ReasonFuture
	default:
		return reasonNone
	}
}

// target is the series that is being read. It gets its reference only when something of it is kept: the dictionary holds
// new series in memory until an event uses them.
type target struct {
	hash   log.Hash
	ref    log.SeriesRef // 0: not resolved yet
	labels labels.Labels // of a series that the dictionary did not know
}

func (h *Handler) resolve(s *target) (err error) {
	if s.ref == 0 {
		s.ref, err = h.dictionary.Resolve(s.hash, s.labels)
	}
	return err
}

// collect moves the good part of a request into the builder and counts the rest. An error is one of the dictionary.
func (h *Handler) collect(a *arena, t *tally) error {
	now := h.clock()
	var failed error
	a.order.begin(&h.recall, h.dictionary.Epoch())
	news := false // some series describes its family otherwise than the log does
	for a.scan.NextSeries() {
		t.series++
		t.receive(itemSample, a.scan.Samples())
		t.receive(itemHistogram, a.scan.Histograms())
		t.receive(itemExemplar, a.scan.Exemplars())
		if failed != nil {
			continue // the rest is counted as received and lost
		}
		s, bad := h.find(a)
		if bad.reason != reasonNone {
			t.badSeries++
			t.fault(bad)
			t.reject(itemSample, bad.reason, a.scan.Samples())
			t.reject(itemHistogram, bad.reason, a.scan.Histograms())
			t.reject(itemExemplar, bad.reason, a.scan.Exemplars())
			continue
		}
		if m, said := a.scan.SeriesMetadata(); said && !news {
			news = !h.families.known(m)
		}
		before := t.counts
		failed = h.collectSeries(a, t, &s, now)
		a.order.note(s.hash, s.ref)
		if failed != nil {
			failed = t.limited(failed, before, &a.scan)
		}
	}
	a.order.end()
	if news {
		h.collectSeriesMetadata(a, t)
	}
	for m, ok := a.scan.NextMetadata(); ok; m, ok = a.scan.NextMetadata() {
		if entry, good := metadataEntry(m); good {
			a.metadata = append(a.metadata, entry)
		} else {
			t.badMetadata++
		}
	}
	if err := a.scan.Err(); err != nil {
		panic("remotewrite: R1: a checked body does not scan: " + err.Error())
	}
	return failed
}

// find looks the current series up, and reads its labels if it is new.
func (h *Handler) find(a *arena) (s target, bad refusal) {
	if bad = a.scan.refused(); bad.reason != reasonNone {
		return s, bad
	}
	s.hash = h.dictionary.Hash(a.scan.Labels())
	if s.ref = a.order.follow(s.hash); s.ref != 0 {
		return s, bad
	}
	var known bool
	if s.ref, known = h.dictionary.Lookup(s.hash); known {
		a.order.missed()
	} else {
		s.labels, bad = a.reader.series(a.scan.Labels())
	}
	return s, bad
}

// collectSeriesMetadata gathers what the series of a request of version 2.0 say about their families. All of it is gathered
// as soon as anything is new, since what a request says about one family is a unit.
func (h *Handler) collectSeriesMetadata(a *arena, t *tally) {
	a.scan.Reset2(a.decoded, &a.symbols, a.reader.labelLimits)
	a.order.begin(&h.recall, h.dictionary.Epoch())
	for a.scan.NextSeries() {
		m, said := a.scan.SeriesMetadata()
		if !said {
			continue
		}
		if _, bad := h.find(a); bad.reason == reasonNone {
			if entry, good := metadataEntry(m); good {
				a.metadata = append(a.metadata, entry)
			} else {
				t.badMetadata++
			}
		}
	}
}

func (h *Handler) collectSeries(a *arena, t *tally, s *target, now clock) error {
	if a.scan.Samples() > 0 {
		if err := h.collectSamples(a, t, s, now); err != nil {
			return err
		}
	}
	if a.scan.Histograms() > 0 {
		if err := h.collectHistograms(a, t, s, now); err != nil {
			return err
		}
	}
	if a.scan.Exemplars() > 0 {
		return h.collectExemplars(a, t, s, now)
	}
	return nil
}

func (h *Handler) collectSamples(a *arena, t *tally, s *target, now clock) error {
	begun := false
	for x, ok := a.scan.NextSample(); ok; x, ok = a.scan.NextSample() {
		if why := now.judge(x.Time); why != reasonNone {
			t.reject(itemSample, why, 1)
			t.fault(refusal{reason: why, limit: now.ahead})
			continue
		}
		if !begun {
			if err := h.resolve(s); err != nil {
				return err
			}
			a.builder.Series(s.ref)
			begun = true
		}
		if x.Start != 0 {
			a.builder.SampleStart(x.Time, x.Value, x.Start)
		} else {
			a.builder.Sample(x.Time, x.Value)
		}
	}
	return nil
}

func (h *Handler) collectHistograms(a *arena, t *tally, s *target, now clock) error {
	for x, ok := a.scan.NextHistogram(); ok; x, ok = a.scan.NextHistogram() {
		if why := now.judge(x.Time); why != reasonNone {
			t.reject(itemHistogram, why, 1)
			t.fault(refusal{reason: why, limit: now.ahead})
			continue
		}
		if err := a.histogram.check(x.Proto); err != nil {
			t.reject(itemHistogram, ReasonHistogram, 1)
			t.fault(refusal{reason: ReasonHistogram, err: err})
			continue
		}
		if err := h.resolve(s); err != nil {
			return err
		}
		a.builder.Histogram(log.Histogram{Ref: s.ref, Time: x.Time, Proto: x.Proto})
	}
	return nil
}

// collectExemplars keeps the good exemplars. A bad one is counted and is no fault of the request, unless its references lead
// nowhere: then the sender's table is broken, and it must hear of that.
func (h *Handler) collectExemplars(a *arena, t *tally, s *target, now clock) error {
	for {
		x, scratch, ok := a.scan.NextExemplar(a.exemplar[:0])
		a.exemplar = scratch
		if !ok {
			return nil
		}
		if x.bad.reason != reasonNone {
			t.reject(itemExemplar, x.bad.reason, 1)
			if x.bad.reason == ReasonReference || x.bad.reason == ReasonOddReferences {
				t.fault(x.bad)
			}
			continue
		}
		if why := now.judge(x.Time); why != reasonNone {
			t.reject(itemExemplar, why, 1)
			continue
		}
		ls, bad := a.reader.exemplar(x.Labels)
		if bad.reason != reasonNone {
			t.reject(itemExemplar, bad.reason, 1)
			continue
		}
		if err := h.resolve(s); err != nil {
			return err
		}
		a.builder.Exemplar(log.Exemplar{Ref: s.ref, Time: x.Time, Value: x.Value, Labels: ls})
	}
}
