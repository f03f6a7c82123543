package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/errgroup"

	"tidemark/transport/remotewrite"
)

// cpuSeconds is what the process has used.
func cpuSeconds(b *testing.B) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// benched is a whole service for a benchmark.
type benched struct {
	b    *testing.B
	base string
	node *node
	stop func()
}

func (v *benched) start(config string) {
	dir := v.b.TempDir()
	path := filepath.Join(dir, "tidemark.yml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		v.b.Fatal(err)
	}
	f := &serveFlags{listening: func(net.Addr) {}}
	f.around.freeBytes = func(string) (uint64, error) { return 1 << 40, nil }
	app := kingpin.New("tidemark", "")
	c := f.declare(app)
	if _, err := app.Parse([]string{"serve", "--storage.path", filepath.Join(dir, "data"), "--config.file", path, "--projection.max-lag", "0"}); err != nil {
		v.b.Fatal(err)
	}
	f.flags = flagValues(c.Model())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		v.b.Fatal(err)
	}
	v.base = "http://" + listener.Addr().String()
	ctx, cancel := context.WithCancel(v.b.Context())
	opened, ended := make(chan *node, 1), make(chan error, 1)
	go func() {
		ended <- f.serveOn(ctx, func() (net.Listener, error) { return listener, nil }, slog.New(slog.DiscardHandler), func(n *node) { opened <- n })
	}()
	select {
	case v.node = <-opened:
	case err := <-ended:
		v.b.Fatal(err)
	}
	v.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			v.b.Fatal(err)
		}
	}
	<-v.node.begun
	if err := v.node.runner.Wait(ctx, v.node.events.Head()); err != nil {
		v.b.Fatal(err)
	}
}

// BenchmarkNewSeries writes one sample of each of many series that the service has never seen, over HTTP, until all are applied. The CPU is
// that of the whole process, sender included; the requests are made before.
func BenchmarkNewSeries(b *testing.B) {
	const series, batch, senders = 200_000, 2000, 4
	for _, c := range []struct{ name, config string }{
		{"panes", ownBenchConfig},
		{"copy", "exact: {local: true}\n" + benchConfig},
	} {
		b.Run(fmt.Sprintf("op=%s/series=%d", c.name, series), func(b *testing.B) {
			var cpu, acked float64
			n := 0
			for b.Loop() {
				b.StopTimer()
				v := benched{b: b}
				v.start(c.config)
				bodies := make([][]byte, series/batch)
				at := time.Now().UnixMilli()
				for i := range bodies {
					var body []byte
					for k := range batch {
						set := remotewrite.Precode(labels.FromStrings("__name__", loadMetric, "group", fmt.Sprint(k%loadGroups), "series", fmt.Sprint(i*batch+k), "run", fmt.Sprint(at),
							"label_04", "value-04-of-a-label", "label_05", "value-05-of-a-label", "label_06", "value-06-of-a-label", "label_07", "value-07-of-a-label",
							"label_08", "value-08-of-a-label", "label_09", "value-09-of-a-label"))
						body = remotewrite.AppendSeries(body, set, remotewrite.Sample{Time: at, Value: float64(k)})
					}
					bodies[i] = remotewrite.Compress(nil, body)
				}
				client := &remotewrite.Client{URL: v.base + remotewrite.Path, HTTP: http.DefaultClient}
				before := cpuSeconds(b)
				b.StartTimer()
				began := time.Now()
				var g errgroup.Group
				for s := range senders {
					g.Go(func() error {
						for i := s; i < len(bodies); i += senders {
							if err := client.Send(b.Context(), bodies[i]); err != nil {
								return err
							}
						}
						return nil
					})
				}
				if err := g.Wait(); err != nil {
					b.Fatal(err)
				}
				acked += time.Since(began).Seconds()
				if err := v.node.runner.Wait(b.Context(), v.node.events.Head()); err != nil {
					b.Fatal(err)
				}
				if v.node.copy != nil {
					if _, err := v.node.copy.samples.Wait(b.Context(), true); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				cpu += cpuSeconds(b) - before
				n++
				v.stop()
				b.StartTimer()
			}
			b.ReportMetric(cpu/float64(n)/series*1e6, "cpu-µs/series")
			b.ReportMetric(series*float64(n)/acked, "acked/s")
		})
	}
}
