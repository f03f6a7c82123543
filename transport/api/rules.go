package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/go-kit/kit/endpoint"
	kithttp "github.com/go-kit/kit/transport/http"
)

// The values of RecordedRule.Health.
const (
	RuleOK  = "ok"
	RuleErr = "err" // it is skipped, and LastError says why
)

// RuleGroup is a group of recording rules, with the members that Prometheus' API gives it.
type RuleGroup struct {
	Name           string         `json:"name"`
	File           string         `json:"file"`
	Rules          []RecordedRule `json:"rules"`
	Interval       float64        `json:"interval"`       // seconds
	Limit          int            `json:"limit"`          // as it is written; nothing holds it
	EvaluationTime float64        `json:"evaluationTime"` // seconds, of all its rules
	LastEvaluation time.Time      `json:"lastEvaluation"` // the newest of its rules
}

// RecordedRule is a recording rule, with the members that Prometheus' API gives it.
type RecordedRule struct {
	Name           string            `json:"name"`
	Query          string            `json:"query"`
	Labels         map[string]string `json:"labels"`
	Health         string            `json:"health"`
	LastError      string            `json:"lastError,omitempty"`
	EvaluationTime float64           `json:"evaluationTime"` // seconds that the last evaluation took; of several steps, all of them
	LastEvaluation time.Time         `json:"lastEvaluation"` // when the newest steps were recorded, or up to when windows are published
	Type           string            `json:"type"`           // always "recording"
}

// RuleLister lists the recorded windows: rules by file, group and position.
type RuleLister interface {
	RuleGroups(ctx context.Context) ([]RuleGroup, error)
}

// rulesRequest are the filters of Prometheus' API: an empty one lets everything through.
type rulesRequest struct {
	kind                 string
	names, groups, files []string
}

// NewRules returns the handler of /api/v1/rules; l may be nil.
func NewRules(l RuleLister) http.Handler {
	return kithttp.NewServer(rulesEndpoint(l), decodeRules, encodeData, kithttp.ServerErrorEncoder(EncodeError))
}

func decodeRules(_ context.Context, r *http.Request) (any, error) {
	f, perr := readForm(nil, r)
	if perr != nil {
		return nil, perr
	}
	q := rulesRequest{kind: f.Get("type"), names: f.Values["rule_name[]"], groups: f.Values["rule_group[]"], files: f.Values["file[]"]}
	switch q.kind {
	case "", "alert", "record":
		return q, nil
	default:
		return nil, invalidParam("type", fmt.Errorf("not supported value %q", q.kind))
	}
}

func rulesEndpoint(l RuleLister) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		q := request.(rulesRequest)
		groups := []RuleGroup{}
		if l != nil && q.kind != "alert" {
			all, err := l.RuleGroups(ctx)
			if err != nil {
				return nil, err
			}
			groups = q.filter(all)
		}
		return map[string][]RuleGroup{"groups": groups}, nil
	}
}

// filter leaves out groups that were not asked for or have no rule that was.
func (q *rulesRequest) filter(all []RuleGroup) []RuleGroup {
	among := func(v string, asked []string) bool { return len(asked) == 0 || slices.Contains(asked, v) }
	out := []RuleGroup{}
	for _, g := range all {
		if !among(g.Name, q.groups) || !among(g.File, q.files) {
			continue
		}
		rules := []RecordedRule{}
		for _, r := range g.Rules {
			if among(r.Name, q.names) {
				if r.Labels == nil {
					r.Labels = map[string]string{}
				}
				r.Type = "recording"
				rules = append(rules, r)
			}
		}
		if g.Rules = rules; len(rules) > 0 {
			out = append(out, g)
		}
	}
	return out
}
