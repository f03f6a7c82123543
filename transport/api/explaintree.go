package api

import (
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/plan"
	"tidemark/projections/query"
)

// explainedNode is a node of the tree of an expression in /api/v1/explain.
type explainedNode struct {
	Node     string           `json:"node"`           // as the parser prints it
	Kind     string           `json:"kind"`           // aggregation, binary, call, …
	Part     *explained       `json:"part,omitempty"` // what answers it, where that is said of the node as a whole
	Children []*explainedNode `json:"children,omitempty"`
}

// explainTree lays out an expression with the parts in it that are answered as a whole. Below these nothing is shown.
func explainTree(expr parser.Expr, parts []explained) *explainedNode {
	byNode := make(map[string]*explained, len(parts))
	for i := range parts {
		byNode[parts[i].Node] = &parts[i]
	}
	return layOut(expr, byNode)
}

func layOut(expr parser.Node, parts map[string]*explained) *explainedNode {
	n := &explainedNode{Node: expr.String(), Kind: kindOf(expr)}
	if n.Part = parts[n.Node]; n.Part != nil {
		return n
	}
	for child := range parser.ChildrenIter(expr) {
		if child != nil {
			n.Children = append(n.Children, layOut(child, parts))
		}
	}
	return n
}

func kindOf(n parser.Node) string {
	switch n.(type) {
	case *parser.AggregateExpr:
		return "aggregation"
	case *parser.BinaryExpr:
		return "binary"
	case *parser.Call:
		return "call"
	case *parser.MatrixSelector, *parser.VectorSelector:
		return "selector"
	case *parser.SubqueryExpr:
		return "subquery"
	case *parser.NumberLiteral, *parser.StringLiteral:
		return "constant"
	case *parser.ParenExpr:
		return "parentheses"
	case *parser.UnaryExpr:
		return "unary"
	default:
		return "other"
	}
}

// defaultExplainStep is the grid that is proposed for instant queries, which say of none.
const defaultExplainStep = 15 * time.Second

// toAdd returns the lines of configuration with which panes would answer what they do not, or "". An instant query, which has no step, is
// better asked at another time than planned for a finer grid.
func toAdd(common query.Common, step time.Duration, parts []explained) string {
	finer := step > 0
	if !finer {
		step = defaultExplainStep
	}
	var uses []plan.Use
	for _, p := range parts {
		if p.Missing != nil && (p.Missing.Reason == query.ReasonNoMaterialization || finer && p.Missing.Reason == query.ReasonOffGrid) {
			uses = append(uses, plan.Use{Expr: p.Node, StepMillis: step.Milliseconds(), Times: 1})
		}
	}
	lookback := common.LookbackDelta
	if lookback <= 0 {
		lookback = time.Duration(plan.DefaultLookback)
	}
	all, _ := plan.Suggest(uses, lookback)
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("materializations:\n")
	for i := range all {
		b.WriteString(all[i].Entry.Lines())
	}
	return b.String()
}
