package query

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"tidemark/projections/plan"
)

// read reads all requests at once and accounts for what came. The snapshot is to be released.
func (e *Engine) read(ctx context.Context, reqs []Request, res *Result) (*Snapshot, error) {
	if len(reqs) == 0 {
		return &Snapshot{}, nil
	}
	res.Stats.Reads++
	began := time.Now()
	snap, err := e.src.Read(ctx, reqs)
	res.Stats.Reading += time.Since(began)
	if err != nil {
		if end := ended(ctx, "reading panes"); end != nil {
			return nil, end
		}
		return nil, &SourceError{err}
	}
	if len(snap.Answers) != len(reqs) {
		return nil, &SourceError{fmt.Errorf("%d answers to %d requests", len(snap.Answers), len(reqs))}
	}
	res.Seq = snap.Seq
	res.CompleteThrough = math.MaxInt64
	res.Stats.Series, res.Stats.Samples, res.Stats.Columns, res.Stats.Pieces = 0, 0, 0, 0
	for i := range snap.Answers {
		a := &snap.Answers[i]
		res.CompleteThrough = min(res.CompleteThrough, a.Proven)
		res.Stats.Series += len(a.Series)
		res.Stats.Pieces += a.Pieces
		for j := range a.Series {
			res.Stats.Samples += len(a.Series[j].T)
			res.Stats.Columns += len(a.Series[j].Cols)
		}
	}
	return snap, nil
}

// requests returns what to read for the leaves, and for each leaf the index of its request, −1 if it needs none. Leaves
// that read overlapping ranges of the same series share a request.
func requests(leaves []*leaf, how reading) (reqs []Request, of []int) {
	type source struct {
		stream   plan.StreamID
		matchers string
	}
	bySource := map[source][]int{}
	of = make([]int, len(leaves))
next:
	for i, l := range leaves {
		of[i] = -1
		if l.steps.count() == 0 || len(l.reads) > 0 || l.whole != nil || l.raw != nil {
			continue
		}
		r := l.request()
		r.Live, r.Behind = how.live != nil, how.behind
		key := source{r.Stream, matchersKey(l)}
		for _, j := range bySource[key] {
			if have := &reqs[j]; r.From <= have.To && have.From <= r.To {
				have.From, have.To = min(have.From, r.From), max(have.To, r.To)
				of[i] = j
				continue next
			}
		}
		of[i] = len(reqs)
		bySource[key] = append(bySource[key], len(reqs))
		reqs = append(reqs, r)
	}
	return reqs, of
}

func matchersKey(l *leaf) string {
	parts := make([]string, len(l.matchers))
	for i, m := range l.matchers {
		parts[i] = m.String()
	}
	slices.Sort(parts)
	return strings.Join(parts, "\x00")
}

// reading is how the panes of a request are read.
type reading struct {
	live   *liveSteps // nil: open buckets are a miss
	behind bool       // what was acknowledged last is not waited for
}

// how returns how panes are read; d may be nil.
func (d *demand) how() reading {
	if d == nil {
		return reading{}
	}
	return d.read
}
