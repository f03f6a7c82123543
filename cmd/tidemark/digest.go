package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/alecthomas/kingpin/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"tidemark/log"
	"tidemark/projections/pane"
	"tidemark/projections/plan"
)

func newDigest(app *kingpin.Application) command {
	var path, format string
	c := app.Command("digest", "Print digests of all published buckets, as of the end of the log. No service may run; nothing on disk is changed.")
	storageFlag(c, &path)
	c.Flag("format", "Form of the output.").Default("text").EnumVar(&format, "text", "json")
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		return digest(ctx, vfs.Default, path, format, stdout)
	}}
}

func digest(ctx context.Context, fs vfs.FS, path, format string, stdout io.Writer) (err error) {
	o, err := openOffline(fs, path, 0, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	head := o.events.Head()
	f, err := o.standing(ctx, head)
	if errors.Is(err, errNoViews) {
		f, err = o.afresh(ctx, head)
	}
	if err != nil {
		return err
	}
	return f.print(stdout, format)
}

// digestRow is the digest of one part of the views.
type digestRow struct {
	Name    string `json:"name"`
	Digest  string `json:"digest"` // 32 hexadecimal digits
	Buckets uint64 `json:"buckets"`

	sum     pane.Sum
	streams []plan.StreamID
}

func newDigestRow(name string, sum pane.Sum, streams ...plan.StreamID) digestRow {
	return digestRow{Name: name, Digest: fmt.Sprintf("%016x%016x", sum.Hi, sum.Lo), Buckets: sum.Buckets, sum: sum, streams: streams}
}

// materializations returns a row for each materialization of the plan, by name. Streams that several share count in each.
func (f *folded) materializations() []digestRow {
	rows := make([]digestRow, 0, len(f.plan.Materializations))
	for i := range f.plan.Materializations {
		m := &f.plan.Materializations[i]
		var sum pane.Sum
		for _, id := range m.Streams {
			sum = sum.Plus(f.digest.Of(id))
		}
		rows = append(rows, newDigestRow(m.Name, sum, m.Streams...))
	}
	slices.SortFunc(rows, func(a, b digestRow) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// unplannedStreams returns a row for each stream that has buckets and that no materialization reads any more.
func (f *folded) unplannedStreams() []digestRow {
	planned := make(map[plan.StreamID]struct{})
	for i := range f.plan.Materializations {
		for _, id := range f.plan.Materializations[i].Streams {
			planned[plan.StreamID(f.digest.Keys[id])] = struct{}{}
		}
	}
	var rows []digestRow
	for _, key := range slices.Sorted(maps.Keys(f.digest.Streams)) {
		if _, ok := planned[key]; !ok {
			rows = append(rows, newDigestRow(key.String(), f.digest.Streams[key], key))
		}
	}
	return rows
}

func (f *folded) print(w io.Writer, format string) error {
	all := newDigestRow("all", f.digest.All)
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(struct {
			Seq              log.Seq     `json:"seq"`
			Digest           string      `json:"digest"`
			Buckets          uint64      `json:"buckets"`
			Materializations []digestRow `json:"materializations"`
			UnplannedStreams []digestRow `json:"unplanned_streams"`
		}{f.digest.Seq, all.Digest, all.Buckets, f.materializations(), append([]digestRow{}, f.unplannedStreams()...)})
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(kind string, r digestRow) {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%d buckets\n", kind, r.Name, r.Digest, r.Buckets)
	}
	for _, r := range f.materializations() {
		line("materialization", r)
	}
	for _, r := range f.unplannedStreams() {
		line("unplanned stream", r)
	}
	fmt.Fprintf(tw, "all\tseq %d\t%s\t%d buckets\n", f.digest.Seq, all.Digest, all.Buckets)
	return tw.Flush()
}
