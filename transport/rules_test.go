package transport

import (
	"context"
	"testing"

	"tidemark/transport/api"
)

type ruleGroups []api.RuleGroup

func (g ruleGroups) RuleGroups(context.Context) ([]api.RuleGroup, error) { return g, nil }

// Recording rules are listed with the members that Prometheus gives them, and its filters work.
func TestRules(t *testing.T) {
	w := newWorld(t, Options{Rules: ruleGroups{
		{Name: "g", File: "r.yml", Interval: 30, Rules: []api.RecordedRule{
			{Name: "a", Query: "sum(m)", Labels: map[string]string{"team": "x"}, Health: api.RuleOK},
			{Name: "b", Query: "bad(m)", Health: api.RuleErr, LastError: "not answered from panes"},
		}},
		{Name: "h", File: "s.yml", Interval: 60, Rules: []api.RecordedRule{{Name: "a", Query: "m", Health: api.RuleOK}}},
	}})
	const (
		zero = `"evaluationTime":0,"lastEvaluation":"0001-01-01T00:00:00Z"`
		ga   = `{"name":"a","query":"sum(m)","labels":{"team":"x"},"health":"ok",` + zero + `,"type":"recording"}`
		gb   = `{"name":"b","query":"bad(m)","labels":{},"health":"err","lastError":"not answered from panes",` + zero + `,"type":"recording"}`
		ha   = `{"name":"a","query":"m","labels":{},"health":"ok",` + zero + `,"type":"recording"}`
	)
	g := func(rules string) string {
		return `{"name":"g","file":"r.yml","rules":[` + rules + `],"interval":30,"limit":0,` + zero + `}`
	}
	const h = `{"name":"h","file":"s.yml","rules":[` + ha + `],"interval":60,"limit":0,` + zero + `}`
	all := func(groups string) string { return `{"status":"success","data":{"groups":[` + groups + `]}}` }
	w.want(w.get("/api/v1/rules"), all(g(ga+","+gb)+","+h))
	w.want(w.get("/api/v1/rules", "type", "record"), all(g(ga+","+gb)+","+h))
	w.want(w.get("/api/v1/rules", "type", "alert"), all(""))
	w.wantError(w.get("/api/v1/rules", "type", "x"), 400, "bad_data", "not supported value")
	w.want(w.get("/api/v1/rules", "rule_name[]", "b"), all(g(gb)))
	w.want(w.get("/api/v1/rules", "rule_name[]", "a", "rule_group[]", "g"), all(g(ga)))
	w.want(w.get("/api/v1/rules", "file[]", "s.yml"), all(h))
	w.want(w.get("/api/v1/rules", "file[]", "none"), all(""))
}
