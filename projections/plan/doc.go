// Package plan turns tidemark.yml and Prometheus rule files into pane streams: what is folded, on which grid, under which rules.
//
// # Contract
//
// [Load] or [Parse] reads the configuration, [Build] resolves it with its rule files into a [Plan] and a [Report] that
// says of every entry and every rule whether panes can answer it, and why not. A plan is a value: it is written to the
// event log as canonical JSON ([Plan.Encode]), read back by the fold ([Decode]) and compared by [Diff]. An entry of
// tidemark.yml that cannot become panes is an error, because somebody asked for it by name. A recording rule that cannot
// is skipped and listed: rule files are taken as they are, and their other rules still count.
//
// [Leaves] is the one place that knows which parts of a PromQL expression read series, over which window and at which
// times. The planner of queries uses it too, so that what the configuration promises and what a query finds agree.
//
// # Life cycle
//
// Nothing here starts a goroutine, reads a clock or keeps a file open. Load reads one file, Build reads the rule files;
// all else is arithmetic on values.
//
// # Grid
//
// A stream's buckets have a width w (PaneMillis) and an origin o. A sample at t is filed under f = t-1 when buckets own
// their right edge (S, E], and under f = t when they own their left edge [S, E). It belongs to the bucket with
//
//	S = o + floor((f-o)/w)*w,  E = S + w
//
// where the division rounds down below zero as well.
//
// # Invariants
//
//   - PL1: a stream's ID is the 64-bit hash of its Identity, and Identity is injective: two streams have the same
//     Identity exactly when selector, pane, origin, membership, lateness and late policy are all equal.
//   - PL2: equal plans have equal bytes, and Decode accepts no other bytes than Encode writes. A field that is added to
//     format 1 is therefore omitted from the JSON while it has its zero value; anything else is a new format.
//   - PL3: every time belongs to exactly one bucket, also below zero and at the ends of int64 (where edges saturate).
//   - PL4: in a plan that Build returns every pane is at least MinPaneMillis wide, no window has more than MaxPanes of
//     them, and each range is a whole number of panes. The window of an instant selector need not be: there the time of
//     the newest sample decides.
//   - PL5: Build returns a whole plan or none; all that is wrong is named in one error.
//   - PL6: what prints a configuration never prints the credentials of the upstream.
//
// # A plan in the log
//
// A plan event says besides where the streams begin that are new with it ([Plan.Begin]): at the oldest event that the log has,
// so that they have its history. Plans are compared without that: a reload that changes nothing appends nothing.
//
// # Bytes
//
// A plan of format 1 is one JSON object without white space, keys in the order of the Go fields, streams by increasing
// ID, materializations by name, matchers by (name, type, value), stream IDs as 16 hexadecimal digits, times as integers in
// milliseconds. testdata holds a golden.
package plan
