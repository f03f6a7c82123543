package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/alecthomas/kingpin/v2"
)

// explainedPart is what the service says of a part of an expression.
type explainedPart struct {
	Func   string   `json:"func"`
	Window int64    `json:"window_ms"`
	Pane   int64    `json:"pane_ms"`
	Reads  []string `json:"reads"`
	Stream string   `json:"stream"`
	Source string   `json:"source"`
	Miss   *struct {
		Reason string `json:"reason"`
		Detail string `json:"detail"`
	} `json:"miss"`
}

// explainedTree is a node of an expression, as the service lays it out.
type explainedTree struct {
	Node     string           `json:"node"`
	Part     *explainedPart   `json:"part"`
	Children []*explainedTree `json:"children"`
}

func newExplain(app *kingpin.Application) command {
	var to remote
	var expr, at, start, end, step string
	c := app.Command("explain", "Say how a running service answers an expression: the tree, the source of each part or why it has none, and what to add to the configuration.")
	c.Arg("expr", "PromQL expression.").Required().StringVar(&expr)
	to.declare(c)
	c.Flag("time", "Evaluation time of an instant query, in seconds or RFC 3339. The last full minute by default.").StringVar(&at)
	c.Flag("start", "First time of a range query.").StringVar(&start)
	c.Flag("end", "Last time of a range query.").StringVar(&end)
	c.Flag("step", "Step of a range query, in seconds or as a duration.").StringVar(&step)
	return command{c, func(ctx context.Context, stdout, _ io.Writer) error {
		form := url.Values{"query": {expr}}
		switch ranged := start != "" || end != "" || step != ""; {
		case ranged && at != "":
			return &exitError{exitUsage, errors.New("--time is for an instant query; --start, --end and --step are for one over a range")}
		case ranged && (start == "" || end == "" || step == ""):
			return &exitError{exitUsage, errors.New("a query over a range needs --start, --end and --step")}
		case ranged:
			form.Set("start", start)
			form.Set("end", end)
			form.Set("step", step)
		case at != "":
			form.Set("time", at)
		}
		ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
		defer cancel()
		s, err := to.service()
		if err != nil {
			return err
		}
		defer s.close()
		e, res, _, err := s.call(ctx, "/api/v1/explain", form)
		if err != nil {
			return err
		}
		if res.StatusCode != http.StatusOK {
			return fmt.Errorf("%s/api/v1/explain: status %d: %s", s.url, res.StatusCode, e.Error)
		}
		var answer struct {
			Tree *explainedTree `json:"tree"`
			Add  string         `json:"add"`
		}
		if err := json.Unmarshal(e.Data, &answer); err != nil {
			return fmt.Errorf("%s/api/v1/explain: %w", s.url, err)
		}
		return printExplanation(stdout, answer.Tree, answer.Add)
	}}
}

func printExplanation(w io.Writer, tree *explainedTree, add string) error {
	var b strings.Builder
	if tree != nil {
		tree.print(&b, 0)
	}
	if add != "" {
		fmt.Fprintf(&b, "\nWith this in tidemark.yml panes would answer more:\n\n%s", add)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// print writes a node and what is below it, each level further to the right.
func (t *explainedTree) print(b *strings.Builder, depth int) {
	indent := strings.Repeat("  ", depth)
	fmt.Fprintf(b, "%s%s\n", indent, t.Node)
	if p := t.Part; p != nil {
		fmt.Fprintf(b, "%s  → %s\n", indent, p)
	}
	for _, c := range t.Children {
		c.print(b, depth+1)
	}
}

// String is the source in words.
func (p *explainedPart) String() string {
	switch {
	case p.Miss != nil && p.Source == "none":
		return fmt.Sprintf("not answered: %s: %s", p.Miss.Reason, p.Miss.Detail)
	case p.Miss != nil:
		return fmt.Sprintf("%s; panes do not: %s: %s", p.Source, p.Miss.Reason, p.Miss.Detail)
	case len(p.Reads) > 0:
		return fmt.Sprintf("%s: %s", p.Source, strings.Join(p.Reads, ", "))
	default:
		return fmt.Sprintf("%s of %s, stream %s", p.Source, millisText(p.Pane), p.Stream)
	}
}
