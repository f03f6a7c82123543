package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Use is an expression that is asked.
type Use struct {
	Expr       string
	StepMillis int64 // between evaluations, whose times are multiples of it
	Times      int   // how often it was asked
}

// Suggestion is a materialization whose panes would answer parts of what is asked.
type Suggestion struct {
	Entry      Entry
	Selector   string // of the series that it reads
	PaneMillis int64
	Times      int // how often parts were asked that it answers
	Parts      int // that differ

	matchers []string
}

// Unsuggested is an expression, or a part of one, for which no materialization helps.
type Unsuggested struct {
	Expr, Reason string
}

// Suggest returns materializations for the parts of expressions that read series, the most asked first: as few as answer all that
// panes can answer. A configuration with just these entries is valid. Selectors and grids that another one covers have none of their own.
func Suggest(uses []Use, lookback time.Duration) ([]Suggestion, []Unsuggested) {
	s := suggester{at: make(map[string]*Suggestion), parts: make(map[string]map[string]bool), asked: make(map[string]int)}
	for _, u := range uses {
		s.use(u, lookback)
	}
	return s.settle(), s.not
}

// suggester gathers suggestions by selector and pane.
type suggester struct {
	at    map[string]*Suggestion
	parts map[string]map[string]bool // by the same key, the parts that it answers
	asked map[string]int             // by key and part
	not   []Unsuggested
}

func (s *suggester) skip(expr, format string, args ...any) {
	u := Unsuggested{expr, fmt.Sprintf(format, args...)}
	if !slices.Contains(s.not, u) {
		s.not = append(s.not, u)
	}
}

func (s *suggester) use(u Use, lookback time.Duration) {
	expr, err := NewParser().ParseExpr(u.Expr)
	if err != nil {
		s.skip(u.Expr, "%v", err)
		return
	}
	leaves, err := Leaves(expr, lookback)
	if err != nil {
		s.skip(u.Expr, "%v", err)
		return
	}
	for i := range leaves {
		s.leaf(&leaves[i], u)
	}
}

func (s *suggester) leaf(l *Leaf, u Use) {
	if l.Reason != "" {
		s.skip(l.Node.String(), "%s", l.Reason)
		return
	}
	step := u.StepMillis
	if l.InSubquery && l.StepMillis > 0 {
		step = l.StepMillis
	}
	pane := gcd(gcd(step, max(l.OffsetMillis, -l.OffsetMillis)), l.RangeMillis)
	if pane < MinPaneMillis {
		s.skip(l.Node.String(), "a step of %s, a range of %s and an offset of %s have no grid of %s or more in common",
			millis(step), millis(l.RangeMillis), millis(l.OffsetMillis), millis(MinPaneMillis))
		return
	}
	if l.RangeMillis/pane > MaxPanes {
		s.skip(l.Node.String(), "a window would have %d panes of %s, at most %d", l.RangeMillis/pane, millis(pane), MaxPanes)
		return
	}
	matchers := make([]string, len(l.Selector.LabelMatchers))
	for i, m := range l.Selector.LabelMatchers {
		matchers[i] = m.String()
	}
	slices.Sort(matchers)
	key := fmt.Sprint(strings.Join(matchers, ","), "/", pane)
	g := s.at[key]
	if g == nil {
		g = &Suggestion{Selector: plainSelector(l.Selector).String(), PaneMillis: pane, matchers: matchers}
		s.at[key], s.parts[key] = g, make(map[string]bool)
	}
	part := plain(l)
	g.Times += u.Times
	s.parts[key][part] = true
	s.asked[key+part] += u.Times
}

// plainSelector is a selector without offset and @, which a materialization need not have.
func plainSelector(vs *parser.VectorSelector) *parser.VectorSelector {
	return &parser.VectorSelector{Name: vs.Name, LabelMatchers: vs.LabelMatchers}
}

// plain is what a leaf asks, without offset and @.
func plain(l *Leaf) string {
	switch n := l.Node.(type) {
	case *parser.VectorSelector:
		return plainSelector(n).String()
	case *parser.Call:
		c := *n
		c.Args = slices.Clone(n.Args)
		for i, a := range c.Args {
			switch a := unwrap(a).(type) {
			case *parser.MatrixSelector:
				c.Args[i] = &parser.MatrixSelector{VectorSelector: plainSelector(a.VectorSelector.(*parser.VectorSelector)), Range: a.Range, RangeExpr: a.RangeExpr}
			case *parser.VectorSelector:
				c.Args[i] = plainSelector(a)
			}
		}
		return c.String()
	}
	return l.Node.String()
}

// settle gives what another suggestion answers to that, and names the rest.
func (s *suggester) settle() []Suggestion {
	keys := make([]string, 0, len(s.at))
	for k := range s.at {
		keys = append(keys, k)
	}
	// The broader and the finer first, so that whatever one covers comes after it.
	slices.SortFunc(keys, func(a, b string) int {
		x, y := s.at[a], s.at[b]
		return cmp.Or(cmp.Compare(len(x.matchers), len(y.matchers)), cmp.Compare(x.PaneMillis, y.PaneMillis), cmp.Compare(a, b))
	})
	var kept []string
	for _, k := range keys {
		by := slices.IndexFunc(kept, func(other string) bool { return s.at[other].covers(s.at[k]) })
		if by < 0 {
			kept = append(kept, k)
			continue
		}
		to := kept[by]
		s.at[to].Times += s.at[k].Times
		for part := range s.parts[k] {
			s.parts[to][part] = true
		}
	}
	names := make(map[string]int)
	out := make([]Suggestion, 0, len(kept))
	for _, k := range kept {
		g := *s.at[k]
		g.Parts = len(s.parts[k])
		g.Entry = Entry{Name: nameFor(&g, names), Expr: s.example(k), Every: Duration(time.Duration(g.PaneMillis) * time.Millisecond)}
		if cfg := (&Config{Materializations: []Entry{g.Entry}}); !builds(cfg) {
			s.skip(g.Entry.Expr, "it cannot be materialized by itself")
			continue
		}
		out = append(out, g)
	}
	slices.SortStableFunc(out, func(a, b Suggestion) int {
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Entry.Name, b.Entry.Name))
	})
	return out
}

// covers reports whether the panes of g answer what those of o do.
func (g *Suggestion) covers(o *Suggestion) bool {
	if o.PaneMillis%g.PaneMillis != 0 {
		return false
	}
	for _, m := range g.matchers {
		if !slices.Contains(o.matchers, m) {
			return false
		}
	}
	return true
}

// example is the expression of an entry: of the parts over the selector itself, the most asked one.
func (s *suggester) example(key string) string {
	best := ""
	for part := range s.parts[key] {
		n := s.asked[key+part]
		if best == "" || n > s.asked[key+best] || n == s.asked[key+best] && part < best {
			best = part
		}
	}
	return best
}

// nameFor makes a name of the metric and the pane that no other suggestion has.
func nameFor(g *Suggestion, names map[string]int) string {
	base := "selection"
	if expr, err := NewParser().ParseExpr(g.Selector); err == nil {
		if vs, ok := expr.(*parser.VectorSelector); ok {
			base = cmp.Or(equalName(vs.LabelMatchers), base)
		}
	}
	name := fmt.Sprintf("%s:%s", base, Duration(time.Duration(g.PaneMillis)*time.Millisecond))
	if badName(name) != "" {
		name = fmt.Sprintf("selection:%s", Duration(time.Duration(g.PaneMillis)*time.Millisecond))
	}
	names[name]++
	if n := names[name]; n > 1 {
		name = fmt.Sprintf("%s:%d", name, n)
	}
	return name
}

func equalName(matchers []*labels.Matcher) string {
	for _, m := range matchers {
		if m.Name == model.MetricNameLabel && m.Type == labels.MatchEqual {
			return m.Value
		}
	}
	return ""
}

// builds reports whether entries alone are a valid configuration.
func builds(entries *Config) bool {
	text := &strings.Builder{}
	for i := range entries.Materializations {
		text.WriteString(entries.Materializations[i].Lines())
	}
	cfg, err := Parse([]byte("materializations:\n"+text.String()), "")
	if err != nil {
		return false
	}
	_, report, err := Build(cfg)
	return err == nil && report.Skipped() == 0
}

// Lines are the lines of an entry in tidemark.yml, below materializations: its name, its expression and its step.
func (e *Entry) Lines() string {
	return fmt.Sprintf("  - name: %s\n    expr: %s\n    every: %s\n", quoted(e.Name), quoted(e.Expr), e.Every)
}

// quoted is a text as a scalar of YAML.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
