package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"tidemark/projections/query"
	"tidemark/projections/query/oracle"
	"tidemark/transport/api"
	"tidemark/transport/remotewrite"
)

const (
	// isolationPace is how often the side that is measured writes or asks, at most: far from what the service can take.
	isolationPace = 20 * time.Millisecond
	// isolationBatch is how many samples a write of that side has.
	isolationBatch = 500
	// isolationHistory is the event time that is asked for.
	isolationHistory = time.Hour
	maxAskers        = 1000
)

// isolationFlags are the flags of bench isolation.
type isolationFlags struct {
	series, senders, askers int
	duration                time.Duration
}

func newBenchIsolation(group *kingpin.CmdClause) command {
	f := &isolationFlags{}
	c := group.Command("isolation", "Measure how long writes take alone and beside queries that take all they can get, and queries alone and beside writes that do, on a "+
		"service of its own with its exact copy, in a process of its own.")
	c.Flag("series", "Series that are asked for.").Default("10000").IntVar(&f.series)
	c.Flag("senders", "Connections of the writes that take all they can get.").Default("8").IntVar(&f.senders)
	c.Flag("askers", "Connections of the queries that take all they can get, from two addresses.").Default("40").IntVar(&f.askers)
	c.Flag("duration", "How long each is measured.").Default("20s").DurationVar(&f.duration)
	return command{c, func(ctx context.Context, stdout, stderr io.Writer) error {
		if f.series < loadGroups || f.series > maxLoadSeries || f.senders < 1 || f.senders > maxLoadSenders || f.askers < 2 || f.askers > maxAskers || f.duration <= 0 {
			return &exitError{exitUsage, fmt.Errorf("--series from %d, --senders from 1 to %d, --askers from 2 to %d, --duration above 0, please", loadGroups, maxLoadSenders, maxAskers)}
		}
		return f.run(ctx, &bench{report: newReport(stdout), progress: stderr})
	}}
}

func (f *isolationFlags) run(ctx context.Context, b *bench) error {
	return inScratch(func(dir string) (err error) {
		b.step("starting a service in %s", dir)
		c, err := startChild(ctx, dir, benchConfig)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.end(os.Interrupt)) }()
		i := &isolation{bench: b, isolationFlags: f, measured: newServiceFrom(c.url, 1, "127.0.0.1")}
		for _, address := range []string{"127.0.0.2", "127.0.0.3"} {
			i.flood = append(i.flood, newServiceFrom(c.url, max(f.askers, f.senders), address))
		}
		defer func() {
			for _, s := range append(i.flood, i.measured) {
				s.close()
			}
		}()
		return i.measure(ctx)
	})
}

// newServiceFrom is newService whose connections come from a loopback address: by it clients without a user are told apart.
func newServiceFrom(base string, conns int, address string) *service {
	s := newService(base, conns)
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	s.http.Transport.(*http.Transport).DialContext = d.DialContext
	return s
}

// isolation measures one side of a service while the other takes all it can get.
type isolation struct {
	*bench
	*isolationFlags
	measured *service
	flood    []*service // of two other clients

	history *load // what is asked for
	writes  *load // what the measured side writes; one sender
}

func (i *isolation) measure(ctx context.Context) error {
	i.step("writing %s of %d series to ask for", isolationHistory, i.series)
	i.history = newLoad(loadShape{series: i.series, labels: 10, perRequest: 2000, senders: i.senders}, loadEvery, time.Now())
	if _, err := i.history.rounds(ctx, i.measured, int64(isolationHistory/loadEvery)); err != nil {
		return err
	}
	end := i.history.start + isolationHistory.Milliseconds()
	if err := applied(ctx, i.measured, end); err != nil {
		return err
	}
	i.writes = newLoad(loadShape{series: max(i.series, isolationBatch), labels: 10, perRequest: isolationBatch, senders: 1}, loadEvery, time.Now())
	if _, err := i.writes.rounds(ctx, i.measured, 1); err != nil {
		return err
	}
	i.machine("before")
	defer i.machine("after")
	heavy := oracle.Query{
		Expr: "sum by (group) (rate(" + i.history.selector("") + "[5m]))", Start: end - isolationHistory.Milliseconds()/2, End: end, Step: paneWidth.Milliseconds(),
	}
	if err := i.writing(ctx, heavy); err != nil {
		return err
	}
	return i.asking(ctx, oracle.Query{Expr: "sum(rate(" + i.history.selector(`,group="7"`) + "[5m]))", Start: end})
}

// machine reports the load average, where the system tells it: other work on the machine is in every figure.
func (i *isolation) machine(when string) {
	text, err := os.ReadFile("/proc/loadavg")
	var one float64
	if _, serr := fmt.Sscan(string(text), &one); err == nil && serr == nil {
		i.report.figure("Isolation/machine="+when, 1, one, "load-average")
	}
}

// writing measures writes alone, beside warm queries and beside local ones.
func (i *isolation) writing(ctx context.Context, heavy oracle.Query) error {
	alone, err := i.write(ctx)
	if err != nil {
		return err
	}
	i.report.latency("Isolation/write/beside=nothing", alone, time.Millisecond, "ms")
	for _, route := range []string{query.RouteWarm, query.RouteLocal} {
		i.step("writing beside %s queries", route)
		var took latencies
		answered, err := i.beside(ctx, i.askers, func(ctx context.Context, n int) error {
			_, err := i.flood[n%len(i.flood)].answer(ctx, heavy, route)
			return err
		}, func(ctx context.Context) error {
			res, err := i.write(ctx)
			if err == nil {
				took = *res
			}
			return err
		})
		if err != nil {
			return err
		}
		i.compared("Isolation/write/beside="+route, &took, alone)
		i.report.figure("Isolation/write/beside="+route, answered, float64(answered)/i.duration.Seconds(), "queries/s")
	}
	return nil
}

// write writes for the duration, at isolationPace.
func (i *isolation) write(ctx context.Context) (*latencies, error) {
	a := i.writes.lanes[0]
	a.loadResult = loadResult{}
	err := i.paced(ctx, func(ctx context.Context) error {
		a.fill(i.writes, 1<<62)
		a.sent = remotewrite.Compress(a.sent, a.body)
		return a.acknowledged(ctx, i.measured.writer())
	})
	if err == nil && a.refused > 0 {
		i.step("%d of these writes were refused first", a.refused)
	}
	took := a.took // the lane's own is that of the next time
	return &took, err
}

// asking measures small queries, warm and local, alone and beside writes.
func (i *isolation) asking(ctx context.Context, small oracle.Query) error {
	alone := make(map[string]*latencies)
	routes := []string{query.RouteWarm, query.RouteLocal}
	for _, route := range routes {
		took, err := i.ask(ctx, small, route)
		if err != nil {
			return err
		}
		alone[route] = took
		i.report.latency("Isolation/query="+route+"/beside=nothing", took, time.Millisecond, "ms")
	}
	flood := newLoad(loadShape{series: 2000 * i.senders, labels: 10, perRequest: 2000, senders: i.senders}, loadEvery, time.Now())
	flood.start = i.writes.end() // newer than all that was written, as what is written usually is
	for _, route := range routes {
		i.step("asking %s queries beside writes", route)
		var took *latencies
		var refused, samples atomic.Uint64
		_, err := i.beside(ctx, i.senders, func(ctx context.Context, n int) error {
			a := flood.lanes[n]
			a.loadResult = loadResult{}
			size := uint64(a.fill(flood, 1<<62))
			a.sent = remotewrite.Compress(a.sent, a.body)
			err := a.acknowledged(ctx, i.flood[n%len(i.flood)].writer())
			refused.Add(a.refused)
			if err == nil {
				samples.Add(size)
			}
			return err
		}, func(ctx context.Context) (err error) {
			took, err = i.ask(ctx, small, route)
			return err
		})
		if err != nil {
			return err
		}
		name := "Isolation/query=" + route + "/beside=writes"
		i.compared(name, took, alone[route])
		i.report.figure(name, samples.Load(), float64(samples.Load())/i.duration.Seconds(), "samples/s")
		i.report.figure(name, samples.Load(), float64(refused.Load()), "refused")
	}
	return nil
}

// ask asks a query for the duration, at isolationPace.
func (i *isolation) ask(ctx context.Context, q oracle.Query, route string) (*latencies, error) {
	var took latencies
	err := i.paced(ctx, func(ctx context.Context) error {
		d, err := i.measured.answer(ctx, q, route)
		took.add(d)
		return err
	})
	return &took, err
}

// compared reports latencies, and their 99th percentile as a multiple of that of the same side alone.
func (i *isolation) compared(name string, took, alone *latencies) {
	i.report.latency(name, took, time.Millisecond, "ms")
	i.report.figure(name, took.n, float64(took.quantile(0.99))/float64(max(1, alone.quantile(0.99))), "p99-ratio")
}

// paced does something for the duration, at isolationPace or as fast as it goes if that is slower, and at least once.
func (i *isolation) paced(ctx context.Context, do func(context.Context) error) error {
	pace := time.NewTicker(isolationPace)
	defer pace.Stop()
	for end := time.Now().Add(i.duration); ; {
		if err := do(ctx); err != nil {
			return err
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if !time.Now().Before(end) {
			return nil
		}
	}
}

// beside runs measure while so many workers do something again and again, each once before measure begins, and returns how often they did
// it meanwhile.
func (i *isolation) beside(ctx context.Context, workers int, again func(ctx context.Context, worker int) error, measure func(context.Context) error) (uint64, error) {
	work, stop := context.WithCancel(ctx)
	defer stop()
	var warm, all sync.WaitGroup
	var done atomic.Uint64
	failed := make(chan error, workers)
	warm.Add(workers)
	for n := range workers {
		all.Go(func() {
			started := sync.OnceFunc(warm.Done)
			defer started()
			for work.Err() == nil {
				if err := again(work, n); err != nil {
					if work.Err() == nil {
						failed <- err
					}
					return
				}
				started()
				done.Add(1)
			}
		})
	}
	warm.Wait()
	before := done.Load()
	err := measure(ctx)
	during := done.Load() - before
	stop()
	all.Wait()
	close(failed)
	for ferr := range failed {
		err = errors.Join(err, ferr)
	}
	return during, err
}

// answer asks a query, reads the whole answer without keeping it, and returns how long that took. The answer must come by the route, of
// which local has to be asked for.
func (s *service) answer(ctx context.Context, q oracle.Query, route string) (time.Duration, error) {
	path, form := queryForm(q)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if route == query.RouteLocal {
		req.Header.Set("Cache-Control", "no-store")
	}
	began := time.Now()
	res, err := s.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxNoteBytes)) // whatever of it can be read
		return 0, fmt.Errorf("%s: status %s: %s", q, res.Status, text)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return 0, err
	}
	if got := res.Header.Get(api.HeaderRoute); got != route {
		return 0, fmt.Errorf("%s: the answer is not %s, but %s", q, route, got)
	}
	return time.Since(began), nil
}

// queryForm returns the route of a query and its parameters.
func queryForm(q oracle.Query) (path string, form url.Values) {
	if q.Step > 0 {
		return "/api/v1/query_range", url.Values{"query": {q.Expr}, "start": {seconds(q.Start)}, "end": {seconds(q.End)}, "step": {seconds(q.Step)}}
	}
	return "/api/v1/query", url.Values{"query": {q.Expr}, "time": {seconds(q.Start)}}
}
