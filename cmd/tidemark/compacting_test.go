package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/transport/remotewrite"
)

// lateBefore is how far before the load's beginning the tasks of correct lie, ms: no question that is asked meanwhile reaches them.
const lateBefore = 60_000

// correct writes tasks of its own until halted: of each first every other sample and, behind a barrier that closes their buckets, the
// others. It returns how many requests it wrote late.
func (l *killLoad) correct(s *site, stop <-chan struct{}, rng *rand.Rand) (late int) {
	send := func(name string, samples int) bool {
		l.mu.Lock()
		k := l.tasks[name]
		if k == nil {
			k = &shortTask{start: l.begin - lateBefore}
			l.tasks[name] = k
		}
		series := remotewrite.Series{Labels: labels.FromStrings("__name__", "load", "sender", "0", "task", name)}
		var mask uint64
		for j := samples; j < samplesOfTask; j += 2 {
			series.Samples = append(series.Samples, remotewrite.Sample{Time: k.at(j), Value: float64(uint64(1) << j)})
			mask |= 1 << j
		}
		k.sent |= mask
		l.mu.Unlock()
		acked, err := l.deliver(remotewrite.Encode([]remotewrite.Series{series}), rng)
		if err != nil {
			l.t.Errorf("%s: %v", name, err)
			return false
		}
		if acked {
			l.mu.Lock()
			k.acked |= mask
			l.mu.Unlock()
		}
		return acked
	}
	for n := 0; ; n++ {
		select {
		case <-stop:
			return late
		case <-time.After(batchEvery): // the pace of a sender
		}
		name := fmt.Sprintf("late-%d", n)
		if !send(name, 0) {
			continue
		}
		if _, err := s.barrier(l.begin - lateBefore + samplesOfTask*spacing + widePane); err == nil && send(name, 1) {
			late++
		}
	}
}

// compaction asks for a compaction of an experiment and returns its task's state and words; "" while the service is down.
func (s *site) compaction(target string) (id, state string) {
	r, err := fetch(s.http, http.MethodPost, s.url()+"/api/v1/tasks", form("kind", "compact", "target", target))
	return taskOf(r, err, http.StatusAccepted)
}

func (s *site) taskState(id string) string {
	r, err := fetch(s.http, http.MethodGet, s.url()+"/api/v1/tasks/"+id, nil)
	_, state := taskOf(r, err, http.StatusOK)
	return state
}

func taskOf(r httpReply, err error, code int) (id, state string) {
	var answer struct{ Data struct{ ID, State string } }
	if err != nil || r.code != code || json.Unmarshal([]byte(r.body), &answer) != nil {
		return "", ""
	}
	return answer.Data.ID, answer.Data.State
}

// TestCase_E22_CompactionBesideIngest compacts an experiment twenty times while it is written to, late samples among them, and kills
// the service in the middle of five. Every sample that was acknowledged is counted once, at every time, and compacting what is left at
// the end changes no published bucket.
func TestCase_E22_CompactionBesideIngest(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	s := newSite(t, loadConfig+"experiment_label: sender\nstats: {scan_interval: 0s, sweep_interval: 0s}\n", "--projection.checkpoint-interval=200ms", "--log.level=warn")
	begin := (time.Now().Add(-time.Hour).UnixMilli() / widePane) * widePane
	p := s.serveReady()
	l := startLoad(t, s, 2, begin, seed)
	b := startBarriers(l, s)
	stop := make(chan struct{})
	var correcting sync.WaitGroup
	var late int
	correcting.Go(func() { late = l.correct(s, stop, rand.New(rand.NewPCG(seed, 2))) })

	done := 0
	for n := range 20 {
		var id, state string
		poll(t, time.Minute, "a task", func() (bool, string) {
			if id == "" {
				s.rescan()
				id, state = s.compaction("0")
			}
			return id != "", state
		})
		if n%4 == 3 {
			<-time.After(time.Duration(rng.IntN(20)) * time.Millisecond) // where the kill falls: nothing depends on how long it is
			p.kill()
			p = s.serveReady()
		}
		poll(t, time.Minute, "the end of the task", func() (bool, string) {
			state = s.taskState(id)
			return state == "done" || state == "failed", strconv.Quote(state)
		})
		if state == "done" {
			done++
		}
	}
	close(stop)
	correcting.Wait()
	b.halt()
	l.halt()
	if late < 5 || b.checks == 0 || done < 15 {
		t.Errorf("%d late requests, %d checks, %d compactions done", late, b.checks, done)
	}
	total := checkAll(t, l, s, begin-lateBefore, finalTime(l))
	s.stop(p)
	before := digestOf(t, filepath.Join(s.dir, "data"), 2)

	p = s.serveReady()
	s.rescan()
	id, state := s.compaction("0")
	poll(t, time.Minute, "the last compaction", func() (bool, string) { state = s.taskState(id); return state == "done", state })
	if again := checkAll(t, l, s, begin-lateBefore, finalTime(l)); again != total {
		t.Errorf("%d samples before the last compaction, %d after", total, again)
	}
	s.stop(p)
	if after := digestOf(t, filepath.Join(s.dir, "data"), 2); after.All != before.All || after.All.Buckets == 0 {
		t.Errorf("compacting has changed what is published: %s, before %s", after.All, before.All)
	}
	t.Logf("%d samples, %d late requests, %d compactions, %d checks", total, late, done, b.checks)
}

// rescan makes a scan round, so that the table has what was written.
func (s *site) rescan() {
	_, _ = fetch(s.http, http.MethodPost, s.url()+"/api/v1/rescan", nil) // it may be down
}
