package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// child is a service in a process of its own, which can be killed.
type child struct {
	url    string
	cmd    *exec.Cmd
	exited chan struct{}
	out    *os.File
}

// startChild runs serve in dir, as startServer does, and returns when the service is ready.
func startChild(ctx context.Context, dir, config string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, defaultConfigFile)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	addr, err := unusedAddress()
	if err != nil {
		return nil, err
	}
	return runChild(ctx, dir, "http://"+addr, "/-/ready", []string{
		self, "serve", "--config.file", file, "--storage.path", filepath.Join(dir, ownStorage), "--web.listen-address", addr,
	})
}

// runChild runs a program that serves at url and leaves what it prints in dir, and returns when it answers 200 at a path.
func runChild(ctx context.Context, dir, url, ready string, argv []string) (*child, error) {
	out, err := os.OpenFile(filepath.Join(dir, ownLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	c := &child{url: url, exited: make(chan struct{}), out: out}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Stdout, c.cmd.Stderr = out, out
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	go func() {
		defer close(c.exited)
		_ = c.cmd.Wait() // how it has ended is for whoever ends it
	}()
	if err := awaitReady(ctx, c.url, ready, c.exited); err != nil {
		return nil, errors.Join(err, c.kill())
	}
	return c, nil
}

// processor is the processor time that the process has used so far; 0 where the system does not tell.
func (c *child) processor() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // behind the name, which may hold anything
	fields := strings.Fields(rest)
	const user, system, ticksPerSecond = 11, 12, 100
	if len(fields) <= system {
		return 0
	}
	var ticks time.Duration
	for _, f := range fields[user : system+1] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		ticks += time.Duration(n)
	}
	return ticks * time.Second / ticksPerSecond
}

// unusedAddress returns a loopback address that was free a moment ago.
func unusedAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// kill ends the process at once.
func (c *child) kill() error { return c.end(os.Kill) }

func (c *child) end(how os.Signal) error {
	err := c.cmd.Process.Signal(how)
	<-c.exited
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	return errors.Join(err, c.out.Close())
}

// replayMade makes a log by a service that takes a load and is killed, and measures what becomes of it: how long the next start takes
// until it is ready, and how fast a replay, a rebuild and a verification go, which must find the views equal.
func (f *benchFlags) replayMade(ctx context.Context, b *bench) error {
	return inScratch(func(dir string) error {
		live, made, err := f.makeLog(ctx, b, dir)
		if err != nil {
			return err
		}
		b.step("starting again after the kill")
		began := time.Now()
		again, err := startChild(ctx, dir, paneConfig(f.pane))
		if err != nil {
			return err
		}
		b.report.figure("ReadyAfterKill", made, time.Since(began).Seconds(), "s")
		if err := again.end(os.Interrupt); err != nil {
			return err
		}
		storage := filepath.Join(dir, ownStorage)
		rate, err := b.replay(ctx, storage)
		if err != nil {
			return err
		}
		b.report.figure("Replay/live", made, rate/live, "ratio")
		for _, verify := range []bool{false, true} {
			if err := b.rebuild(ctx, storage, made, live, verify); err != nil {
				return err
			}
		}
		return nil
	})
}

// makeLog returns the rate of the load, in samples acknowledged per second, and their number.
func (f *benchFlags) makeLog(ctx context.Context, b *bench, dir string) (rate float64, made uint64, err error) {
	b.step("starting a service in %s", dir)
	server, err := startChild(ctx, dir, paneConfig(f.pane))
	if err != nil {
		return 0, 0, err
	}
	s := newService(server.url, f.shape.senders)
	defer s.close()
	rounds := max(1, f.samples/int64(f.shape.series))
	b.step("writing %d samples of each of %d series", rounds, f.shape.series)
	res, err := newLoad(f.shape, loadEvery, time.Now()).rounds(ctx, s, rounds)
	if err = errors.Join(err, server.kill()); err != nil {
		return 0, 0, err
	}
	rate = float64(res.samples) / res.elapsed.Seconds()
	b.report.figure(fmt.Sprintf("Write/series=%d", f.shape.series), res.samples, rate, "samples/s")
	return rate, res.samples, nil
}

// rebuild measures a rebuild of the views, or its verification.
func (b *bench) rebuild(ctx context.Context, storage string, samples uint64, live float64, verify bool) error {
	name := "Rebuild"
	if verify {
		name = "RebuildVerify"
	}
	b.step("%s of %d samples", name, samples)
	heap, cpu := watchHeap(), processorTime()
	began := time.Now()
	var said bytes.Buffer
	r := &rebuild{fs: vfs.Default, path: storage, now: time.Now, verify: verify}
	err := r.run(ctx, &said, io.Discard)
	elapsed, used := time.Since(began), processorTime()-cpu
	growth := heap.stop()
	if err != nil {
		return err
	}
	rate := float64(samples) / elapsed.Seconds()
	b.report.figure(name, samples, rate, "samples/s")
	b.report.figure(name, samples, float64(used.Nanoseconds())/float64(samples), "cpu-ns/sample")
	b.report.figure(name+"/live", samples, rate/live, "ratio")
	b.report.figure(name+"/heap", samples, growth, "second-half/first-half")
	for line := range bytes.Lines(said.Bytes()) {
		b.step("%s", bytes.TrimSpace(line))
	}
	return nil
}

// processorTime is what this process has used so far: on a machine that does other things too, only that says what work costs.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heapWatch looks at the heap while something runs.
type heapWatch struct {
	over chan struct{}
	done chan struct{}
	seen []uint64 // bytes in use, at regular times
}

const heapEvery = 50 * time.Millisecond

func watchHeap() *heapWatch {
	h := &heapWatch{over: make(chan struct{}), done: make(chan struct{})}
	runtime.GC()
	go func() {
		defer close(h.done)
		every := time.NewTicker(heapEvery)
		defer every.Stop()
		for {
			select {
			case <-h.over:
				return
			case <-every.C:
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			h.seen = append(h.seen, m.HeapInuse)
		}
	}()
	return h
}

// stop returns the largest heap of the second half of the time in parts of that of the first: about 1 where memory is flat.
func (h *heapWatch) stop() float64 {
	close(h.over)
	<-h.done
	var halves [2]uint64
	for i, n := range h.seen {
		half := &halves[2*i/len(h.seen)]
		*half = max(*half, n)
	}
	if halves[0] == 0 {
		return 1
	}
	return float64(halves[1]) / float64(halves[0])
}
