package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

const truncateConfig = `
exact: {local: false}
materializations:
  - name: m_1m
    expr: sum_over_time(m[1m])
    every: 10s
`

// session runs the log and the folds of a node over a directory, without HTTP, while do runs, and stops them in order.
func session(t *testing.T, dir string, do func(*node)) error {
	t.Helper()
	cfg, err := plan.Parse([]byte(truncateConfig), dir)
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := plan.Build(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n, err := openNode(&serveFlags{storagePath: dir, workers: 2, ckpt: -1}, cfg, p, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	var stop []func()
	failed := make(chan error, 3)
	for _, run := range []func(context.Context) error{n.events.Run, n.panes.Run, n.runner.Run} {
		execute, interrupt := actor(run)
		go func() { failed <- execute() }()
		stop = append(stop, func() { interrupt(nil) })
	}
	do(n)
	for i := range stop { // from the outside in
		stop[len(stop)-1-i]()
	}
	for range stop {
		err = errors.Join(err, <-failed)
	}
	return errors.Join(err, n.close())
}

// digest waits until everything is folded and returns the digest of it.
func truncatedDigest(t *testing.T, n *node) string {
	t.Helper()
	if err := n.runner.Wait(t.Context(), n.events.Head()); err != nil {
		t.Fatal(err)
	}
	d, err := n.panes.Digest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d.All.String()
}

func writeSeries(t *testing.T, n *node, from, to int) {
	t.Helper()
	for at := from; at < to; at++ {
		b := log.NewWriteBuilder()
		for i := range 20 {
			ls := labels.FromStrings("__name__", "m", "i", fmt.Sprint(i+at/30))
			ref, err := n.events.Dictionary().Resolve(n.events.Dictionary().Hash(ls.Bytes(nil)), ls)
			if err != nil {
				t.Fatal(err)
			}
			b.Series(ref)
			b.Sample(int64(10_000*at+i), float64(at))
		}
		if _, err := n.events.Append(t.Context(), b.Finish()); err != nil {
			t.Fatal(err)
		}
	}
}

// The whole way: a log is truncated by the tool, which seals a base; then the views are lost, or damaged, and a start takes them from
// the base and replays what the log still has. Without the base, or with a damaged one, it refuses and says why.
func TestTruncateAndRestore(t *testing.T) {
	dir := t.TempDir()
	tool := func(args ...string) (int, string) {
		var out, errs bytes.Buffer
		code := execute(t.Context(), append([]string{"log"}, append(args, "--storage.path", dir)...), &out, &errs)
		return code, out.String() + errs.String()
	}
	var want string
	var head log.Seq
	if err := session(t, dir, func(n *node) {
		if _, err := n.events.AppendAll(t.Context(), &log.Start{Reason: log.StartProcess}, &log.Plan{Spec: n.current.Load().plan.Encode()}); err != nil {
			t.Fatal(err)
		}
		writeSeries(t, n, 0, 100)
		want, head = truncatedDigest(t, n), n.events.Head()
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		through int
		code    int
		says    string
	}{
		{500, exitFailure, "the views reflect the log up to 102 only"}, {102, exitFailure, "the newest event of the log, 102, always stays"},
		{60, exitOK, `"floor": 61`}, {40, exitFailure, "the log begins at 61 already"}, {90, exitOK, `"base_seq": 102`},
	} {
		if code, said := tool("truncate", "--through", fmt.Sprint(c.through)); code != c.code || !strings.Contains(said, c.says) {
			t.Fatalf("through %d: code %d, %s", c.through, code, said)
		}
	}
	if code, said := tool("verify"); code != exitOK || !strings.Contains(said, `"Floor": 91`) {
		t.Fatalf("code %d, %s", code, said)
	}
	if code, said := tool("dump"); code != exitOK || !strings.HasPrefix(said, `{"seq":91,`) {
		t.Fatalf("code %d, %.100s", code, said)
	}
	if code, said := tool("dump", "--from", "7"); code != exitFailure || !strings.Contains(said, "sequence 7 is no longer in the log, which begins at 91") {
		t.Fatalf("code %d, %s", code, said)
	}
	// Everything stands: nothing is restored, and the log goes on.
	if err := session(t, dir, func(n *node) {
		if got := truncatedDigest(t, n); got != want || n.events.Head() != head {
			t.Fatalf("%s at %d, not %s at %d", got, n.events.Head(), want, head)
		}
		writeSeries(t, n, 100, 130)
		want = truncatedDigest(t, n)
	}); err != nil {
		t.Fatal(err)
	}
	views := filepath.Join(dir, viewsDir)
	for what, spoil := range map[string]func(){
		"lost views": func() { remove(t, views) },
		"damaged views": func() {
			tables, err := filepath.Glob(filepath.Join(views, "*.sst"))
			if err != nil || len(tables) == 0 {
				t.Fatal(tables, err)
			}
			for _, name := range tables {
				remove(t, name)
			}
		},
		"views that were put together halfway": func() {
			remove(t, views)
			if err := os.MkdirAll(filepath.Join(dir, viewsDir+".restore", "x"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
	} {
		spoil()
		if err := session(t, dir, func(n *node) {
			if got := truncatedDigest(t, n); got != want {
				t.Errorf("%s: %s, not %s", what, got, want)
			}
		}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	remove(t, views)
	base, err := bucket.NewestBase(filepath.Join(dir, baseDir), bucket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(base.Path, "views", base.Files[0].Name)
	content, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 4
	if err := os.WriteFile(table, content, 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(says ...string) {
		t.Helper()
		err := session(t, dir, func(*node) { t.Error("it starts") })
		for _, s := range says {
			if err == nil || !strings.Contains(err.Error(), s) {
				t.Errorf("%v does not say %q", err, s)
			}
		}
	}
	refused("base is damaged: "+table, "the log begins at 91", "the views reflect the log up to 0")
	remove(t, filepath.Join(dir, baseDir))
	refused("there is no base in "+filepath.Join(dir, baseDir), "the log begins at 91")
	if code, said := tool("truncate", "--through", "100"); code != exitFailure || !strings.Contains(said, "what lies between is in neither") {
		t.Errorf("code %d, %s", code, said)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}
