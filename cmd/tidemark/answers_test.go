package main

// Answers of the query API as values of Prometheus' engine.

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"tidemark/projections/query/oracle"
)

type jsonPoint [2]any

func (p jsonPoint) float() (t int64, v float64, err error) {
	at, ok := p[0].(float64)
	text, isText := p[1].(string)
	if !ok || !isText {
		return 0, 0, fmt.Errorf("not a point: %v", p)
	}
	v, err = strconv.ParseFloat(text, 64)
	return int64(math.Round(at * 1000)), v, err
}

type jsonSeries struct {
	Metric map[string]string `json:"metric"`
	Value  jsonPoint         `json:"value"`
	Values []jsonPoint       `json:"values"`
}

// parseAnswer reads an answer of /api/v1/query or /api/v1/query_range.
func parseAnswer(body string) (oracle.Outcome, error) {
	var answer struct {
		Status string
		Error  string
		Data   struct {
			ResultType string          `json:"resultType"`
			Result     json.RawMessage `json:"result"`
		}
		Warnings, Infos []string
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil {
		return oracle.Outcome{}, fmt.Errorf("%w in %.200s", err, body)
	}
	if answer.Status != "success" {
		return oracle.Outcome{}, fmt.Errorf("status %s: %s", answer.Status, answer.Error)
	}
	value, err := parseValue(answer.Data.ResultType, answer.Data.Result)
	return oracle.Outcome{Value: value, Warnings: answer.Warnings, Infos: answer.Infos}, err
}

func parseValue(kind string, result json.RawMessage) (parser.Value, error) {
	if kind == "scalar" {
		var p jsonPoint
		if err := json.Unmarshal(result, &p); err != nil {
			return nil, err
		}
		t, v, err := p.float()
		return promql.Scalar{T: t, V: v}, err
	}
	var series []jsonSeries
	if err := json.Unmarshal(result, &series); err != nil {
		return nil, err
	}
	vector, matrix := promql.Vector{}, promql.Matrix{}
	for _, s := range series {
		metric := labels.FromMap(s.Metric)
		if kind == "vector" {
			t, v, err := s.Value.float()
			if err != nil {
				return nil, err
			}
			vector = append(vector, promql.Sample{Metric: metric, T: t, F: v})
			continue
		}
		points := make([]promql.FPoint, len(s.Values))
		for i, p := range s.Values {
			t, v, err := p.float()
			if err != nil {
				return nil, err
			}
			points[i] = promql.FPoint{T: t, F: v}
		}
		matrix = append(matrix, promql.Series{Metric: metric, Floats: points})
	}
	switch kind {
	case "vector":
		return vector, nil
	case "matrix":
		return matrix, nil
	}
	return nil, fmt.Errorf("result of type %q", kind)
}

// soleValue returns the value of an instant answer of one series.
func soleValue(t *testing.T, o oracle.Outcome) float64 {
	t.Helper()
	v, ok := o.Value.(promql.Vector)
	if !ok || len(v) != 1 {
		t.Fatalf("not one series: %v", o.Value)
	}
	return v[0].F
}
