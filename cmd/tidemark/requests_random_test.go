package main

// The random campaign against the handler as it is served: structure-aware random requests, good ones and such with faults in any
// layer, and questions beside them. No fault of a client is answered with 5xx, nothing in order is refused, and what was
// acknowledged is in the log: every sample and histogram once, with all its bits, and nothing else is.
//
//	go test ./cmd/tidemark -run TestRandomRequests          a slice
//	make requests COUNT=20000000 [SEED=s] [DURATION=d]      long; appends a line to testdata/campaign.jsonl every ten minutes

import (
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	sliceRequests = 40_000
	// roundRequests are those between two looks into the log, each with a new service.
	roundRequests = 200_000
	// requestWorkers send at one time, so that many wait for one fsync.
	requestWorkers = 96
)

const requestsConfig = `
query: {unpublished: live}
exact: {local: false}
materializations:
  - {name: m_sum, expr: "sum_over_time(m[1m])", every: 1m}
`

// TestRandomRequests is the slice that runs with all tests.
func TestRandomRequests(t *testing.T) {
	counts, findings := requestRound(t, seedOf(t), sliceRequests)
	for _, f := range findings {
		t.Error(f)
	}
	t.Log(counts)
	for _, what := range []string{"writes answered 204", "writes answered 400", "writes answered 413", "writes answered 415", "other requests answered 200", "other requests answered 400", "in the log"} {
		if counts[what] == 0 {
			t.Errorf("none: %s", what)
		}
	}
}

// TestRandomRequests_Long sends REQUESTS_COUNT of them from REQUESTS_SEED on, or as many as REQUESTS_DURATION lets it.
func TestRandomRequests_Long(t *testing.T) {
	text := os.Getenv("REQUESTS_COUNT")
	if text == "" {
		t.Skip("REQUESTS_COUNT is not set; `make requests` sets it")
	}
	count, err := strconv.ParseUint(text, 10, 64)
	seed, serr := strconv.ParseUint(os.Getenv("REQUESTS_SEED"), 10, 64)
	duration, derr := time.ParseDuration(os.Getenv("REQUESTS_DURATION"))
	if err := errors.Join(err, serr, derr); err != nil {
		t.Fatal(err)
	}
	l := ledger{path: filepath.Join(root(t), "testdata", "campaign.jsonl")}
	if path := os.Getenv("CAMPAIGN_LEDGER"); path != "" {
		l.path = path
	}
	end := time.Now().Add(duration)
	for sent := uint64(0); sent < count && time.Now().Before(end); {
		began := time.Now()
		x := ledgerLine{Date: began.UTC().Format(time.RFC3339), Mode: "requests", From: seed, Commit: os.Getenv("CAMPAIGN_COMMIT"), Counts: map[string]uint64{}}
		for sent < count && time.Since(began) < ledgerEvery && time.Now().Before(end) {
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
				counts, findings := requestRound(t, seed, int(min(roundRequests, count-sent)))
				for k, n := range counts {
					x.Counts[k] += n
				}
				sent += counts["requests"]
				for _, f := range findings {
					t.Errorf("FINDING: %s", f)
					if len(x.Findings) < maxFindings {
						x.Findings = append(x.Findings, fmt.Sprintf("seed %d: %.400s", seed, f))
					}
				}
			})
			x.To = seed
			seed++
		}
		x.Seconds = int64(time.Since(began).Seconds())
		if err := l.add(x); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of %d requests in %d s: %v", sent, count, x.Seconds, x.Counts)
	}
}

// requestRound sends requests to a service of its own and then reads its log.
func requestRound(t *testing.T, seed uint64, count int) (map[string]uint64, []string) {
	var handler http.Handler
	s := setup{config: requestsConfig, flags: []string{
		"--projection.max-lag=0", "--write.max-client-share=1", "--write.max-inflight-bytes=1GiB", "--write.max-decoded-bytes=8MiB", "--query.timeout=20s",
	}}
	s.dir = t.TempDir()
	s = s.onto(t, vfs.NewMem())
	s.around.serving = func(h http.Handler) { handler = h }
	v := startService(t, s)

	hashes, pool := maphash.MakeSeed(), newPool(seed)
	workers := make([]sentItems, requestWorkers)
	var wg sync.WaitGroup
	for w := range workers {
		mine := &workers[w]
		mine.seed, mine.counts = hashes, map[string]uint64{}
		mine.acked, mine.maybe = make([]itemKey, 0, 4*count/requestWorkers), make([]itemKey, 0, 4*count/requestWorkers)
		wg.Go(func() {
			m := newMaker(seed, uint64(w), pool)
			a := &asker{rand.New(rand.NewPCG(seed, uint64(w)|1<<32))}
			var at string
			defer func() {
				if p := recover(); p != nil {
					panic(fmt.Sprintf("seed %d, worker %d, %s: %v", seed, w, at, p))
				}
			}()
			for n := w; n < count; n += requestWorkers {
				mine.counts["requests"]++
				if m.chance(1) {
					method, path, params := a.next()
					at = method + " " + path + " " + params
					mine.ask(handler, method, path, params)
					continue
				}
				q := m.next()
				at = fmt.Sprintf("request %d: %x", n, q.body)
				mine.write(handler, q)
			}
		})
	}
	wg.Wait()
	counts, findings := map[string]uint64{}, []string(nil)
	var acked, maybe []itemKey
	for w := range workers {
		for k, n := range workers[w].counts {
			counts[k] += n
		}
		findings = append(findings, workers[w].findings...)
		acked, maybe = append(acked, workers[w].acked...), append(maybe, workers[w].maybe...)
	}
	items, barriers, err := logged(v.node.events, keys{seed: hashes})
	if err != nil {
		findings = append(findings, fmt.Sprintf("the log cannot be read: %v", err))
	}
	if barriers < counts["barriers"] {
		findings = append(findings, fmt.Sprintf("%d barriers are in the log, %d were acknowledged", barriers, counts["barriers"]))
	}
	counts["acknowledged"], counts["in the log"] = uint64(len(acked)), uint64(len(items))
	missing, strange := account(items, acked, maybe)
	for what, odd := range map[string][]itemKey{"acknowledged and not in the log": missing, "in the log and sent by nobody": strange} {
		if len(odd) > 0 {
			findings = append(findings, fmt.Sprintf("%d items %s; one is of %s", len(odd), what, whose(seed, count, hashes, odd[0])))
		}
	}
	if err := v.node.stopped(); err != nil {
		findings = append(findings, fmt.Sprintf("a projection has stopped: %v", err))
	}
	v.mustStop()
	return counts, findings
}

// whose makes the requests of a round again and says which holds an item.
func whose(seed uint64, count int, hashes maphash.Seed, key itemKey) string {
	s, pool := sentItems{keys: keys{seed: hashes}}, newPool(seed)
	for w := range requestWorkers {
		m := newMaker(seed, uint64(w), pool)
		a := &asker{rand.New(rand.NewPCG(seed, uint64(w)|1<<32))}
		for n := w; n < count; n += requestWorkers {
			if m.chance(1) {
				a.next()
				continue
			}
			q := m.next()
			if s.reference(q); slices.Contains(s.found, key) {
				return fmt.Sprintf("request %d, version %d with %v: %x", n, q.version, q.faults, q.body)
			}
		}
	}
	return "no request"
}

// The accounts of a round see what is missing, what is there twice, and what nobody has sent.
func TestRandomRequests_Accounts(t *testing.T) {
	for _, tc := range []struct {
		items, acked, maybe []itemKey
		missing, strange    int
	}{
		{[]itemKey{1, 2, 3}, []itemKey{3, 1}, []itemKey{2, 4}, 0, 0},
		{[]itemKey{1, 3}, []itemKey{1, 2, 3}, nil, 1, 0},
		{[]itemKey{1, 1}, []itemKey{1}, nil, 0, 1},
		{[]itemKey{1}, []itemKey{1, 1}, nil, 1, 0},
		{[]itemKey{5, 7}, nil, []itemKey{5, 6}, 0, 1},
		{nil, []itemKey{1}, []itemKey{1}, 1, 0},
	} {
		missing, strange := account(tc.items, tc.acked, tc.maybe)
		if len(missing) != tc.missing || len(strange) != tc.strange {
			t.Errorf("%v: missing %v, strange %v", tc, missing, strange)
		}
	}
}
