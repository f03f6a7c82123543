package query

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// checkSize bounds what the parser is given: its work grows with the square of the depth, and the depth with the tokens.
func checkSize(expr string) error {
	if len(expr) > MaxExpressionBytes {
		return fmt.Errorf("the expression has %d bytes, more than %d", len(expr), MaxExpressionBytes)
	}
	lexer := parser.Lex(expr)
	var item parser.Item
	for range MaxTokens {
		lexer.NextItem(&item)
		if item.Typ == parser.EOF || item.Typ == parser.ERROR {
			return nil // what is wrong, the parser says
		}
	}
	return fmt.Errorf("the expression has more than %d tokens", MaxTokens)
}

// CheckNesting bounds how deep functions, aggregations and operators stand in one another: printing a part of an expression, which finding
// what answers it does for each, takes time with the square of that.
func CheckNesting(expr parser.Expr) error {
	if nesting(expr) > MaxNesting*operatorsACall {
		return fmt.Errorf("the expression is nested too deeply: functions and aggregations more than %d times, or operators more than %d times", MaxNesting, MaxNesting*operatorsACall)
	}
	return nil
}

// operatorsACall is how many operators in a chain count as one function within another.
const operatorsACall = MaxLeaves / MaxNesting

// nesting is the greatest count on a way down.
func nesting(n parser.Node) (deepest int) {
	for c := range parser.ChildrenIter(n) {
		deepest = max(deepest, nesting(c))
	}
	switch n.(type) {
	case *parser.AggregateExpr, *parser.Call, *parser.SubqueryExpr:
		deepest += operatorsACall
	case *parser.BinaryExpr:
		deepest++
	}
	return deepest
}

// checkSelectors bounds the number of selectors, and the regular expressions that would be run over all label sets.
func checkSelectors(expr parser.Expr) error {
	selectors := parser.ExtractSelectors(expr)
	if len(selectors) > MaxLeaves {
		return fmt.Errorf("the expression has %d selectors, more than %d", len(selectors), MaxLeaves)
	}
	for _, matchers := range selectors {
		for _, m := range matchers {
			if (m.Type == labels.MatchRegexp || m.Type == labels.MatchNotRegexp) && len(m.Value) > MaxRegexpBytes {
				return fmt.Errorf("the regular expression for label %q has %d bytes, more than %d", m.Name, len(m.Value), MaxRegexpBytes)
			}
		}
	}
	return nil
}

type metrics struct {
	answers *prometheus.CounterVec
	misses  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	m := metrics{
		answers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_query_answers_total",
			Help: "Queries answered, by route.",
		}, []string{"route"}),
		misses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tidemark_query_misses_total",
			Help: "Queries that panes could not answer, by the reason of the first miss.",
		}, []string{"reason"}),
	}
	if reg != nil {
		reg.MustRegister(m.answers, m.misses)
	}
	return m
}

func (m metrics) observe(res *Result, err error) {
	var miss *MissError
	switch {
	case err == nil:
		m.answers.WithLabelValues(res.Route).Inc()
		if res.Miss != "" {
			m.misses.WithLabelValues(res.Miss).Inc()
		}
	case errors.As(err, &miss):
		m.misses.WithLabelValues(miss.Reason).Inc()
	}
}
