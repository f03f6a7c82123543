// Package query answers PromQL from panes, exactly as Prometheus would from the samples, or says why it cannot.
//
// Contract. For the same samples an answer equals that of Prometheus 3's engine: the same series, labels, timestamps,
// warnings, infos and errors, and values within the bounds of package accum. Where panes do not hold or do not prove what
// an expression needs, the answer is a *MissError with a reason, never a partial or stale value. What to do about a miss
// (forward the request, or refuse it) is the caller's business.
//
// Life of a request. Prometheus' engine parses and preprocesses the expression. Its leaves (range functions over range
// selectors, instant selectors, timestamp and absent_over_time of a selector) are found by walking the expression as the
// engine evaluates it, so that the times at which each leaf is evaluated are known, subqueries, offset and @ included. Each
// leaf is matched to a stream of the plan: matchers at least as narrow, windows made of whole panes. All leaves are read
// by one call of Source.Read, checked for completeness, and evaluated by package accum. In the expression each leaf is
// replaced by a synthetic selector, and the engine evaluates the rest over a storage that holds the leaves' values at the
// times of its steps. Large reads are shared by several readers, each of some shards, and large leaves by several sweeps,
// each over some series, or over some steps where it adds up: no float is added in another order than by one.
//
// A selector of the name of a materialization, or of what a rule records, reads the values of that expression at the steps of its
// grid, under the labels of the rule, as if they had been written there with a stale marker where a series ends. The
// expression is evaluated at the steps that are needed, by the same engine over the same read, from the materialization's own
// streams; rules that read other rules are resolved in turn. Steps that are recorded (package window) are taken from the
// record where they are clean. So are parts of an expression that are recorded as they stand, or in finer groups, or
// without some matchers on the labels that they are grouped by.
//
// A selector that may mean both recorded and written series, as by a regular expression over names, reads the first beside the second,
// which the exact copy has: the engine is given both. Lists of series (Engine.RecordedSeries) and readers of samples (Everything) get
// recorded series from here, too.
//
// The route of a request is one for all its steps and leaves: warm, or a miss.
//
// Invariants:
//
//	Q1  All leaves of an answer are read at one log sequence.
//	Q2  Every window (e−R, e] of every leaf is published: e−R ≥ coverage start, e ≤ frontier, and no series of the
//	    answer has an open or incomplete bucket, or one with native histograms, that overlaps the window.
//	Q3  The engine reads nothing but leaves, and of a leaf the value at the step's own time or none: no value reaches
//	    from one step into another.
//	Q4  Nothing of the rewriting shows: no synthetic label in results or errors, and positions are those of the text sent.
//	Q5  Evaluation times are never rounded: off a stream's grid there is no answer from that stream.
//	Q6  Work is bounded before it is done: bytes and tokens before parsing, leaves before reading, points before they are
//	    made; and it ends soon after its context does.
//	Q7  A recorded series has a sample at each step of its grid at which the expression has a value, and a marker at the first
//	    at which it has none. An instant selector reads the newest step or nothing: a step that is not published is a miss,
//	    never skipped.
//	Q8  A recorded step is read only if it is clean as of the sequence of the read: published, and no bucket that overlaps it was
//	    opened, closed or corrected after the event that it is as of. So with records and without, answers are the same.
//	Q9  A selector that says something of names means recorded series as well as written ones, one that does not written ones alone.
//	    Patterns over names mean what is recorded per step, not what is named only (plan.Named). A written series under a name that
//	    a plan gives is nobody's: neither queries nor lists nor other readers see it.
//	Q10 No client holds more of the places for queries than its share, and a place that becomes free goes to the clients in turn.
package query
