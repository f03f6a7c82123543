package api

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// ParseQuery serves /api/v1/parse_query: the expression as the tree that Prometheus' API shows.
func (a *API) ParseQuery(w http.ResponseWriter, r *http.Request) {
	f, perr := readForm(w, r)
	if perr != nil {
		WriteError(w, perr)
		return
	}
	expr, err := a.parser.ParseExpr(f.Get("query"))
	if err != nil {
		WriteError(w, invalidParam("query", err))
		return
	}
	node, err := tree(expr)
	if err == nil {
		err = encodeData(r.Context(), w, node)
	}
	if err != nil {
		WriteError(w, &Error{Type: TypeInternal, Err: err})
	}
}

// object is a node of the tree.
type object map[string]any

// tree makes the JSON object of an expression; nil for none.
func tree(e parser.Expr) (any, error) {
	switch n := e.(type) {
	case nil:
		return nil, nil
	case *parser.NumberLiteral:
		return object{"type": "numberLiteral", "val": strconv.FormatFloat(n.Val, 'f', -1, 64)}, nil
	case *parser.StringLiteral:
		return object{"type": "stringLiteral", "val": n.Val}, nil
	case *parser.ParenExpr:
		return branch(object{"type": "parenExpr"}, "expr", n.Expr)
	case *parser.UnaryExpr:
		return branch(object{"type": "unaryExpr", "op": n.Op.String()}, "expr", n.Expr)
	case *parser.AggregateExpr:
		o := object{"type": "aggregation", "op": n.Op.String(), "grouping": listed(n.Grouping), "without": n.Without}
		return branch(o, "expr", n.Expr, "param", n.Param)
	case *parser.BinaryExpr:
		o := object{"type": "binaryExpr", "op": n.Op.String(), "bool": n.ReturnBool, "matching": matchingOf(n.VectorMatching)}
		return branch(o, "lhs", n.LHS, "rhs", n.RHS)
	case *parser.Call:
		return callOf(n)
	case *parser.VectorSelector:
		return selectorOf("vectorSelector", n), nil
	case *parser.MatrixSelector:
		vs, ok := n.VectorSelector.(*parser.VectorSelector)
		if !ok {
			return nil, fmt.Errorf("a range of %T", n.VectorSelector)
		}
		o := selectorOf("matrixSelector", vs)
		o["range"], o["rangeExpr"] = n.Range.Milliseconds(), nil
		return o, nil
	case *parser.SubqueryExpr:
		o := object{
			"type": "subquery", "range": n.Range.Milliseconds(), "rangeExpr": nil, "offset": n.OriginalOffset.Milliseconds(), "offsetExpr": nil,
			"step": n.Step.Milliseconds(), "stepExpr": nil, "timestamp": n.Timestamp, "startOrEnd": edge(n.StartOrEnd),
		}
		return branch(o, "expr", n.Expr)
	default:
		return nil, fmt.Errorf("an expression of type %T", e)
	}
}

// branch puts the trees of expressions into o, each under the name before it.
func branch(o object, named ...any) (any, error) {
	for i := 0; i < len(named); i += 2 {
		e, _ := named[i+1].(parser.Expr)
		sub, err := tree(e)
		if err != nil {
			return nil, err
		}
		o[named[i].(string)] = sub
	}
	return o, nil
}

func callOf(n *parser.Call) (any, error) {
	args := make([]any, len(n.Args))
	for i, e := range n.Args {
		var err error
		if args[i], err = tree(e); err != nil {
			return nil, err
		}
	}
	fn := object{"name": n.Func.Name, "argTypes": n.Func.ArgTypes, "variadic": n.Func.Variadic, "returnType": n.Func.ReturnType}
	return object{"type": "call", "func": fn, "args": args}, nil
}

func selectorOf(kind string, n *parser.VectorSelector) object {
	return object{
		"type": kind, "name": n.Name, "matchers": matchersOf(n.LabelMatchers), "offset": n.OriginalOffset.Milliseconds(), "offsetExpr": nil,
		"timestamp": n.Timestamp, "startOrEnd": edge(n.StartOrEnd), "anchored": n.Anchored, "smoothed": n.Smoothed,
	}
}

func matchersOf(ms []*labels.Matcher) []object {
	out := make([]object, len(ms))
	for i, m := range ms {
		out[i] = object{"name": m.Name, "value": m.Value, "type": m.Type.String()}
	}
	return out
}

func matchingOf(m *parser.VectorMatching) any {
	if m == nil {
		return nil
	}
	return object{
		"card": m.Card.String(), "labels": listed(m.MatchingLabels), "on": m.On, "include": listed(m.Include),
		"fillValues": object{"lhs": m.FillValues.LHS, "rhs": m.FillValues.RHS},
	}
}

// edge is start or end, as after @; nil for neither.
func edge(k parser.ItemType) any {
	if k == 0 {
		return nil
	}
	return k.String()
}

func listed(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
