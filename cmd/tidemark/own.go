package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/alecthomas/kingpin/v2"
)

const (
	// ownLog is the file in which an ownServer leaves its log, beside its configuration and storage.
	ownLog     = "server.log"
	ownStorage = "data"

	readyTimeout = 2 * time.Minute // a log of hours, on a machine that does other things too
	readyPoll    = 5 * time.Millisecond
)

// ownServer is a server of this process's own, for demo and bench: the command serve on a free loopback port, with its
// configuration, storage and log in one directory.
type ownServer struct {
	url    string
	dir    string
	cancel context.CancelFunc
	done   chan struct{}
	err    error // of serve; valid once done is closed
	log    *os.File
}

// startServer runs serve in dir, which must exist, until stop is called. It returns when the service is ready.
func startServer(ctx context.Context, dir, config string, args ...string) (*ownServer, error) {
	file := filepath.Join(dir, defaultConfigFile)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	out, err := os.OpenFile(filepath.Join(dir, ownLog), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	bound := make(chan net.Addr, 1)
	app := kingpin.New("tidemark", "")
	serve := serveCommand(app, func(a net.Addr) { bound <- a })
	if _, err := app.Parse(append([]string{
		serve.clause.FullCommand(), "--config.file", file, "--storage.path", filepath.Join(dir, ownStorage), "--web.listen-address", "127.0.0.1:0",
	}, args...)); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	// Whoever cancels ctx still has the server stopped in order, by stop.
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &ownServer{dir: dir, cancel: cancel, done: make(chan struct{}), log: out}
	go func() {
		defer close(s.done)
		s.err = serve.run(run, io.Discard, out)
	}()
	select {
	case a := <-bound:
		s.url = "http://" + a.String()
	case <-s.done:
		return nil, fmt.Errorf("start the server: %w", s.stop())
	}
	if err := awaitReady(ctx, s.url, "/-/ready", s.done); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// awaitReady waits until a service answers 200 at a path. gone is closed when it has ended.
func awaitReady(ctx context.Context, url, path string, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client := newService(url, 1)
	defer client.close()
	every := time.NewTicker(readyPoll)
	defer every.Stop()
	for {
		ready, err := client.ready(ctx, path)
		if ready {
			return nil
		}
		select {
		case <-every.C:
		case <-gone:
			return errors.New("the server ended before it was ready") // stop says why
		case <-ctx.Done():
			return fmt.Errorf("the server is not ready: %w", errors.Join(ctx.Err(), err))
		}
	}
}

// stop stops the server in order and returns what it failed with. It may be called again.
func (s *ownServer) stop() error {
	s.cancel()
	<-s.done
	err := s.err
	if cerr := s.log.Close(); err == nil && !errors.Is(cerr, os.ErrClosed) {
		err = cerr
	}
	return err
}
