// Package window records windows: the values of an expression per step of its grid and output series, so that a query is a
// look-up. It does so behind the fold, off the ingest path.
//
// What is recorded is derived twice over: from panes, which are derived from the log. Nothing waits for it. A query takes a
// recorded step only if it is clean as of the query's own sequence, and evaluates every other step from panes (package
// query); so a Recorder that is slow, behind or stopped makes queries dearer and never wrong.
//
// A step T is clean when it is published and no bucket that overlaps it was opened, closed or corrected after the event
// that the record is as of. The fold keeps per stream and bucket end the last event that changed it (package pane). From
// these ends the Recorder finds the steps that may be dirty, never by walking the grid; evaluates those that are published;
// and has the fold forget the ends of which every step stands recorded. Expressions that have values without data, or
// windows that do not move with the step, have steps that no bucket leads to: they are not recorded.
//
// A record that begins over panes which were published before finds their ends in the store of buckets, and is noted to be whole
// once all of their steps stand recorded (history).
//
// Life cycle of a Recorder: New, Run (blocks).
//
// Invariants:
//
//	W1  A recorded step is the expression over the panes as of its sequence, every leaf of it at that one sequence.
//	W2  A change is forgotten only after every step that its bucket takes part in was recorded as of that change or later.
//	W3  Of one materialization, steps are evaluated at most once in each of its intervals, however many changes there were.
//	W4  Work in one round is bounded; what is left is done in the next.
//	W5  Recording changes nothing that is published: the digest is the same with and without it.
//	W6  Every covered step that a kept bucket overlaps is recorded once it is published, whenever the record began.
package window
