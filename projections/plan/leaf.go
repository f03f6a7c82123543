package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// MaxLeaves is the largest number of leaves that Leaves returns for one expression.
const MaxLeaves = 1000

// NewParser returns the parser for all PromQL that Tidemark reads, from the configuration and from queries.
// Experimental functions are known: mad_over_time is answered from panes, the others are left to the exact source.
func NewParser() parser.Parser {
	return parser.NewParser(parser.Options{EnableExperimentalFunctions: true})
}

// Leaf is a part of an expression that reads series directly: a range function over a matrix selector, timestamp over a
// vector selector, or a vector selector alone. Times and lengths are in milliseconds.
type Leaf struct {
	Node     parser.Expr   // the part: *parser.Call, *parser.VectorSelector, or (with Reason) *parser.MatrixSelector
	Path     []parser.Node // from the root of the expression to the parent of Node
	Func     string        // the function's name; empty for a selector alone
	Selector *parser.VectorSelector

	// Instant says that the leaf wants the newest sample that lookback covers, not all samples of a range.
	Instant bool
	// RangeMillis is the length of the window (e-R, e] that ends at the evaluation time; for an instant leaf, the lookback.
	RangeMillis int64
	// Arg is the other argument of the function (the quantile, the seconds to predict), nil if there is none. What it
	// reads itself has leaves of its own.
	Arg parser.Expr

	// OffsetMillis is subtracted from the evaluation time. It is negative for "offset -1m".
	OffsetMillis int64
	// At is the time of an @ modifier, which takes the place of the evaluation time; nil without one, and for
	// @ start() and @ end() as long as the engine has not resolved them: then StartOrEnd is set.
	At         *int64
	StartOrEnd parser.ItemType

	// InSubquery says that the leaf is evaluated at the steps of a subquery, the innermost one around it. These are the
	// multiples of StepMillis since 1970, whatever the query's own times; 0 stands for the default step.
	InSubquery bool
	StepMillis int64

	// ReachMillis is how far before the query's evaluation time samples are read: range, offset, and the ranges and
	// offsets of the subqueries around the leaf. It is 0 when an @ on the way fixes the time.
	ReachMillis int64

	// LatestMillis is how far before the query's evaluation time the newest of those samples may lie: the sum of the offsets of
	// the leaf and of the subqueries around it. It is negative where they reach ahead, and 0 when Pinned.
	LatestMillis int64
	// Pinned says that an @, of the leaf or of a subquery around it, takes the place of the evaluation time.
	Pinned bool

	// SamplesOnly says that panes answer the function only while they hold their samples, not from columns.
	SamplesOnly bool
	// Reason says why panes cannot answer the leaf, whatever the plan. It is empty if they can.
	Reason string
}

// Leaves returns the leaves of an expression in the order in which they stand. The lookback is that of instant selectors.
// The expression may come from the parser or from promql.PreprocessExpr; it is not changed. It is an error if there are
// more than MaxLeaves. An expression that reads no series has no leaves.
func Leaves(expr parser.Expr, lookback time.Duration) ([]Leaf, error) {
	w := leafWalker{lookback: lookback.Milliseconds()}
	w.walk(expr, leafScope{})
	if w.tooMany {
		return nil, fmt.Errorf("more than %d selectors in one expression", MaxLeaves)
	}
	return w.leaves, nil
}

// leafScope is what a leaf inherits from the nodes above it.
type leafScope struct {
	inSubquery bool
	step       int64
	reach      int64
	offset     int64
	pinned     bool   // an @ above fixes the time
	reason     string // why nothing below can be answered from panes
}

type leafWalker struct {
	lookback int64
	path     []parser.Node
	leaves   []Leaf
	tooMany  bool
}

func (w *leafWalker) walk(node parser.Expr, sc leafScope) {
	if w.tooMany || node == nil {
		return
	}
	switch n := node.(type) {
	case *parser.VectorSelector:
		w.add(Leaf{Node: n, Selector: n, Instant: true, RangeMillis: w.lookback}, sc)
		return
	case *parser.MatrixSelector:
		sc.blame("a range vector outside a function")
		w.addMatrix(n, n, "", nil, sc)
		return
	case *parser.Call:
		w.call(n, sc)
		return
	case *parser.SubqueryExpr:
		sc.enter(n)
	}
	w.path = append(w.path, node)
	for child := range parser.ChildrenIter(node) {
		if e, ok := child.(parser.Expr); ok {
			w.walk(e, sc)
		}
	}
	w.path = w.path[:len(w.path)-1]
}

// call takes a function over a selector as one leaf and looks into the arguments of all other functions.
func (w *leafWalker) call(n *parser.Call, sc leafScope) {
	name := n.Func.Name
	args := n.Args
	switch name {
	case "info":
		sc.blame("info() looks up series that the expression does not name")
		args = args[:min(1, len(args))] // the second argument restricts that look-up and reads nothing itself
	case "histogram_avg", "histogram_count", "histogram_sum", "histogram_stddev", "histogram_stdvar":
		sc.blame(name + "() reads native histograms, which panes do not hold")
	}
	taken := -1
	for i, arg := range args {
		switch a := unwrap(arg).(type) {
		case *parser.MatrixSelector:
			var other parser.Expr
			if rest := slices.Delete(slices.Clone([]parser.Expr(args)), i, i+1); len(rest) > 0 {
				other = rest[0]
			}
			w.addMatrix(n, a, name, other, sc)
			taken = i
		case *parser.VectorSelector:
			if name != "timestamp" && name != "start_timestamp" {
				continue
			}
			if name == "start_timestamp" {
				sc.blame("start_timestamp() reads start timestamps, which panes do not hold")
			}
			w.add(Leaf{Node: n, Func: name, Selector: a, Instant: true, RangeMillis: w.lookback}, sc)
			taken = i
		}
	}
	w.path = append(w.path, n)
	for i, arg := range args {
		if i != taken {
			w.walk(arg, sc)
		}
	}
	w.path = w.path[:len(w.path)-1]
}

// addMatrix adds a leaf over a matrix selector.
func (w *leafWalker) addMatrix(node parser.Expr, m *parser.MatrixSelector, name string, arg parser.Expr, sc leafScope) {
	vs, ok := m.VectorSelector.(*parser.VectorSelector)
	if !ok {
		return // the parser returns no such tree without an error
	}
	l := Leaf{Node: node, Func: name, Selector: vs, Arg: arg}
	length, err := modifierMillis(m.Range, m.RangeExpr)
	switch {
	case err != nil:
		sc.blame("range: " + err.Error())
	case length <= 0:
		sc.blame("range: shorter than 1ms")
	}
	l.RangeMillis = length
	switch answerableFrom(name) {
	case fromPanes:
	case fromSamples:
		l.SamplesOnly = true
	default:
		if name != "" {
			sc.blame(name + "() is not answered from panes")
		}
	}
	w.add(l, sc)
}

// add fills in what the selector's modifiers and the nodes above say, and keeps the leaf.
func (w *leafWalker) add(l Leaf, sc leafScope) {
	if len(w.leaves) == MaxLeaves {
		w.tooMany = true
		return
	}
	vs := l.Selector
	offset, err := modifierMillis(vs.OriginalOffset, vs.OriginalOffsetExpr)
	if err != nil {
		sc.blame("offset: " + err.Error())
	}
	if vs.Anchored || vs.Smoothed {
		sc.blame("anchored and smoothed selectors read samples outside their window")
	}
	l.OffsetMillis, l.At, l.StartOrEnd = offset, vs.Timestamp, vs.StartOrEnd
	l.InSubquery, l.StepMillis = sc.inSubquery, sc.step
	l.Pinned = sc.pinned || vs.Timestamp != nil || vs.StartOrEnd != 0
	if !l.Pinned {
		l.LatestMillis = saturatingAdd(sc.offset, offset)
	}
	if !sc.pinned && vs.Timestamp == nil {
		l.ReachMillis = saturatingAdd(sc.reach, saturatingAdd(l.RangeMillis, max(offset, 0)))
	}
	l.Path = slices.Clone(w.path)
	l.Reason = sc.reason
	w.leaves = append(w.leaves, l)
}

// blame keeps the outermost reason: it is the one that cannot be mended further down.
func (sc *leafScope) blame(reason string) {
	if sc.reason == "" {
		sc.reason = reason
	}
}

// enter makes the scope that of the inside of a subquery.
func (sc *leafScope) enter(n *parser.SubqueryExpr) {
	step, err := modifierMillis(n.Step, n.StepExpr)
	if err != nil {
		sc.blame("subquery step: " + err.Error())
	}
	length, err := modifierMillis(n.Range, n.RangeExpr)
	if err != nil {
		sc.blame("subquery range: " + err.Error())
	}
	offset, err := modifierMillis(n.OriginalOffset, n.OriginalOffsetExpr)
	if err != nil {
		sc.blame("subquery offset: " + err.Error())
	}
	sc.inSubquery, sc.step = true, step
	sc.reach = saturatingAdd(sc.reach, saturatingAdd(length, max(offset, 0)))
	sc.offset = saturatingAdd(sc.offset, offset)
	sc.pinned = sc.pinned || n.Timestamp != nil || n.StartOrEnd != 0
}

// unwrap removes what stands around an argument without changing its meaning; the engine does the same.
func unwrap(e parser.Expr) parser.Expr {
	for {
		switch n := e.(type) {
		case *parser.ParenExpr:
			e = n.Expr
		case *parser.StepInvariantExpr:
			e = n.Expr
		default:
			return e
		}
	}
}

// answerable says what answers a range function.
type answerable int

const (
	fromNothing answerable = iota // the exact source only
	fromSamples                   // panes, while they hold samples
	fromPanes                     // panes
)

func answerableFrom(function string) answerable {
	switch function {
	case "rate", "increase", "delta", "irate", "idelta", "resets", "changes",
		"sum_over_time", "count_over_time", "avg_over_time", "min_over_time", "max_over_time",
		"last_over_time", "first_over_time", "present_over_time", "absent_over_time", "quantile_over_time":
		return fromPanes
	case "deriv", "stddev_over_time", "stdvar_over_time", "mad_over_time", "predict_linear":
		return fromSamples
	default:
		return fromNothing
	}
}
