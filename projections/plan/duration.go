package plan

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
)

// errQueryDuration says that a duration is known only once a query says over which times it is evaluated.
var errQueryDuration = errors.New("depends on the step or the range of the query")

// modifierMillis returns a range, step or offset in whole milliseconds, as the engine truncates it. The literal is used
// unless there is an expression for it; an expression that depends on the query counts as resolved once the engine has
// put its value into the literal.
func modifierMillis(literal time.Duration, expr *parser.DurationExpr) (int64, error) {
	if expr == nil {
		return literal.Milliseconds(), nil
	}
	seconds, err := evalDuration(expr)
	if errors.Is(err, errQueryDuration) && literal != 0 {
		return literal.Milliseconds(), nil
	}
	if err != nil {
		return 0, err
	}
	// time.Duration ends at about 292 years; beyond it the engine refuses too.
	if math.IsNaN(seconds) || math.Abs(seconds) > math.MaxInt64/1e9 {
		return 0, fmt.Errorf("%s is out of range", expr)
	}
	return int64(seconds * 1000), nil
}

// evalDuration evaluates a duration expression to seconds.
func evalDuration(e parser.Expr) (float64, error) {
	if n, ok := e.(*parser.NumberLiteral); ok {
		return n.Val, nil
	}
	d, ok := e.(*parser.DurationExpr)
	if !ok {
		return 0, fmt.Errorf("unknown part %T", e)
	}
	if d.Op == parser.STEP || d.Op == parser.RANGE {
		return 0, errQueryDuration
	}
	var l, r float64
	var err error
	if d.LHS != nil {
		if l, err = evalDuration(d.LHS); err != nil {
			return 0, err
		}
	}
	if d.RHS != nil {
		if r, err = evalDuration(d.RHS); err != nil {
			return 0, err
		}
	}
	switch d.Op {
	case parser.ADD:
		return l + r, nil // without a left side: +r
	case parser.SUB:
		return l - r, nil // without a left side: -r
	case parser.MUL:
		return l * r, nil
	case parser.POW:
		return math.Pow(l, r), nil
	case parser.MIN_OF:
		return math.Min(l, r), nil
	case parser.MAX_OF:
		return math.Max(l, r), nil
	case parser.DIV, parser.MOD:
		if r == 0 {
			return 0, errors.New("division by zero")
		}
		if d.Op == parser.DIV {
			return l / r, nil
		}
		return math.Mod(l, r), nil
	default:
		return 0, fmt.Errorf("unknown operator %s", d.Op)
	}
}
