package main

// Senders that behave as Prometheus does, and the ledger of what they were told.

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"tidemark/transport/remotewrite"
)

// The shape of the load. Series are short-lived: a task writes so many samples and is gone.
const (
	tasksAtOnce   = 15                     // series of one sender that write at the same time
	samplesOfTask = 20                     // ≤ 50, so that sums of 2^k are exact
	samplesABatch = 4                      // of each series in one request
	spacing       = 250                    // ms between samples of a series
	batchEvery    = 60 * time.Millisecond  // pace of one sender
	retryAfter    = 30 * time.Millisecond  // Prometheus' first back-off
	retryAtMost   = 300 * time.Millisecond // and its longest, here
)

// shortTask is a series. Its k-th sample has the value 2^k, so that a sum over the series says which samples were counted, and
// together with their number that each was counted once: n numbers 2^k, some of them twice, never sum to a number with n bits.
type shortTask struct {
	start       int64  // ms, of sample 0
	sent, acked uint64 // bit k: sample k was sent at least once, was acknowledged
}

// at returns the time of a sample, ms.
func (k *shortTask) at(sample int) int64 { return k.start + int64(sample)*spacing }

// within returns the samples in (from, to].
func (k *shortTask) within(from, to int64) (mask uint64) {
	for i := range samplesOfTask {
		if at := k.at(i); at > from && at <= to {
			mask |= 1 << i
		}
	}
	return mask
}

// killLoad is several senders and what they know.
type killLoad struct {
	t      *testing.T
	client *remotewrite.Client
	begin  int64 // ms, event time of the first sample
	stop   chan struct{}
	done   sync.WaitGroup

	mu      sync.Mutex
	tasks   map[string]*shortTask
	settled []int64 // per sender: what is at or before was acknowledged or given up
	counts  struct{ batches, retries, resent, abandoned int }
}

// startLoad starts senders, whose choices come from seed. They write until halt.
func startLoad(t *testing.T, s *site, senders int, begin int64, seed uint64) *killLoad {
	l := &killLoad{
		t: t, client: &remotewrite.Client{URL: s.url() + "/api/v1/write", HTTP: s.http}, begin: begin,
		stop: make(chan struct{}), tasks: make(map[string]*shortTask), settled: make([]int64, senders),
	}
	for i := range senders {
		l.settled[i] = begin - 1
		rng := rand.New(rand.NewPCG(seed, uint64(i)+100))
		l.done.Go(func() { l.run(i, rng) })
	}
	t.Cleanup(l.halt)
	return l
}

// halt ends the senders once each has settled its last batch.
func (l *killLoad) halt() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.done.Wait()
}

// run writes batch after batch of one generation of tasks after the other.
func (l *killLoad) run(sender int, rng *rand.Rand) {
	pace := time.NewTicker(batchEvery)
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case <-l.stop:
			return
		case <-pace.C:
		}
		const batchesOfTask = samplesOfTask / samplesABatch
		generation, first := n/batchesOfTask, n%batchesOfTask*samplesABatch
		if err := l.batch(sender, generation, first, rng); err != nil {
			l.t.Errorf("sender %d: %v", sender, err)
			return
		}
	}
}

// batch writes the samples from first on of all tasks of a generation, until they are acknowledged or given up.
func (l *killLoad) batch(sender, generation, first int, rng *rand.Rand) error {
	var request []remotewrite.Series
	var mask uint64
	names := make([]string, tasksAtOnce)
	l.mu.Lock()
	l.counts.batches++
	for i := range names {
		names[i] = fmt.Sprintf("s%d-g%d-%d", sender, generation, i)
		k := l.tasks[names[i]]
		if k == nil {
			k = &shortTask{start: l.begin + int64(generation)*samplesOfTask*spacing + int64(i)}
			l.tasks[names[i]] = k
		}
		series := remotewrite.Series{Labels: labels.FromStrings("__name__", "load", "sender", strconv.Itoa(sender), "task", names[i])}
		for j := first; j < first+samplesABatch; j++ {
			series.Samples = append(series.Samples, remotewrite.Sample{Time: k.at(j), Value: float64(uint64(1) << j)})
			mask |= 1 << j
		}
		k.sent |= mask
		request = append(request, series)
	}
	l.mu.Unlock()
	acked, err := l.deliver(remotewrite.Encode(request), rng)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, name := range names {
		k := l.tasks[name]
		if acked {
			k.acked |= mask
		}
		// The next batch begins with the task that is one step ahead of the first.
		if i == 0 {
			l.settled[sender] = k.at(first+samplesABatch) - 1
		}
	}
	return nil
}

// deliver repeats a request until it is acknowledged, as Prometheus does. Sometimes it gives up after the connection broke, so
// that nobody knows whether the samples are in, and sometimes it sends again what was acknowledged, as if the answer had been
// lost on its way.
func (l *killLoad) deliver(body []byte, rng *rand.Rand) (acked bool, err error) {
	ctx := context.Background()
	for wait := retryAfter; ; wait = min(2*wait, retryAtMost) {
		err := l.client.Send(ctx, body)
		var status *remotewrite.StatusError
		switch {
		case err == nil:
			if rng.IntN(10) > 0 {
				return true, nil
			}
			l.count(&l.counts.resent)
			_ = l.client.Send(ctx, body) // it counts as acknowledged all the same
			return true, nil
		case errors.As(err, &status) && status.Code != http.StatusServiceUnavailable:
			return false, err // nothing else is right for these requests
		case status == nil && rng.IntN(6) == 0:
			l.count(&l.counts.abandoned)
			return false, nil
		}
		l.count(&l.counts.retries)
		select {
		case <-time.After(wait):
		case <-l.stop:
			// The server is up when the load is halted: the next attempts are the last.
		}
	}
}

func (l *killLoad) count(n *int) {
	l.mu.Lock()
	*n++
	l.mu.Unlock()
}

// settledThrough is the time up to which all senders are done, and with which a barrier may be called.
func (l *killLoad) settledThrough() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	least := l.settled[0]
	for _, s := range l.settled {
		least = min(least, s)
	}
	return least
}

// errDown is what a question meets while the service is killed or starts.
var errDown = errors.New("the service is down")

// snapshot copies the ledger.
func (l *killLoad) snapshot() map[string]shortTask {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]shortTask, len(l.tasks))
	for name, k := range l.tasks {
		out[name] = *k
	}
	return out
}

// check asks for count and sum over (to-window, to] of every task, by warm queries, and compares with the ledger: everything
// that was acknowledged before the call is counted exactly once, and nothing that was never sent. It returns how many
// samples it saw. The error is errDown if nothing was answered.
func (l *killLoad) check(s *site, to, window int64) (samples int, err error) {
	before := l.snapshot()
	counts, err := l.ask(s, "count_over_time", to, window)
	if err != nil {
		return 0, err
	}
	sums, err := l.ask(s, "sum_over_time", to, window)
	if err != nil {
		return 0, err
	}
	after := l.snapshot()
	for name, sum := range sums {
		k, known := after[name]
		mask := uint64(sum)
		if !known || float64(mask) != sum || mask&^k.sent != 0 || mask&^k.within(to-window, to) != 0 {
			return 0, fmt.Errorf("%s: sum %g holds what was not sent (%b)", name, sum, k.sent)
		}
		if n := counts[name]; n != float64(bits.OnesCount64(mask)) {
			return 0, fmt.Errorf("%s: %g samples sum up to %b: one is counted twice", name, n, mask)
		}
		samples += bits.OnesCount64(mask)
	}
	for name, k := range before {
		if lost := k.acked & k.within(to-window, to) &^ uint64(sums[name]); lost != 0 {
			return 0, fmt.Errorf("%s: acknowledged samples %b are lost; acknowledged %b, counted %b", name, lost, k.acked, uint64(sums[name]))
		}
	}
	if len(counts) != len(sums) {
		return 0, fmt.Errorf("%d series are counted and %d summed up", len(counts), len(sums))
	}
	return samples, nil
}

func (l *killLoad) ask(s *site, function string, to, window int64) (map[string]float64, error) {
	expr := fmt.Sprintf("%s(load[%dms])", function, window)
	r, err := fetch(s.http, http.MethodGet, s.url()+"/api/v1/query", form("query", expr, "time", strconv.FormatFloat(float64(to)/1000, 'f', 3, 64)))
	if err != nil || r.code == http.StatusServiceUnavailable {
		return nil, errDown
	}
	want := "warm"
	if to%finePane != 0 {
		want = "local"
	}
	if route := r.header.Get("X-Tidemark-Route"); r.code != http.StatusOK || route != want {
		return nil, fmt.Errorf("%s at %d: status %d, route %q: %.300s", expr, to, r.code, route, r.body)
	}
	out, err := parseAnswer(r.body)
	if err != nil {
		return nil, fmt.Errorf("%s at %d: %w", expr, to, err)
	}
	values := make(map[string]float64)
	for _, v := range out.Value.(promql.Vector) {
		values[v.Metric.Get("task")] = v.F
	}
	return values, nil
}
