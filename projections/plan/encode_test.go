package plan

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// samplePlan is a plan that uses every field.
func samplePlan(t testing.TB) *Plan {
	t.Helper()
	c, err := Parse([]byte(`
experiment_label: run
materializations:
  - {name: ratio, expr: 'sum(rate(m{code=~"5.."}[5m])) / sum(rate(m[5m]))', every: 15s, allowed_lateness: 10s}
  - {name: load, expr: 'max(node_load1{instance!="<local>"})', every: 1m, retention: 30d}
`), ".")
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	p.Materializations[0].Record = "cluster:load"
	p.Materializations[0].Labels = map[string]string{"b": "2", "a": "1", "c": "\u2028&"}
	return p
}

// TestPL2_Golden pins the bytes of format 1, and with them the hash behind the IDs.
func TestPL2_Golden(t *testing.T) {
	path := filepath.Join("testdata", "plan-1.json")
	got := samplePlan(t).Encode()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("format 1 has changed:\n%s\nwant\n%s", got, want)
	}
	p, err := Decode(want)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(samplePlan(t), p); d != "" {
		t.Errorf("the golden reads back as another plan: %s", d)
	}
}

// TestPL2_EqualPlansHaveEqualBytes: the order of slices and maps in memory does not show.
func TestPL2_EqualPlansHaveEqualBytes(t *testing.T) {
	a, b := samplePlan(t), samplePlan(t)
	slices.Reverse(b.Streams)
	slices.Reverse(b.Materializations)
	for i := range b.Streams {
		slices.Reverse(b.Streams[i].Matchers)
	}
	for i := range b.Materializations {
		slices.Reverse(b.Materializations[i].Streams)
		labels := make(map[string]string)
		for _, k := range []string{"c", "b", "a"} {
			if v, ok := b.Materializations[i].Labels[k]; ok {
				labels[k] = v
			}
		}
		b.Materializations[i].Labels = labels // empty instead of nil for one of them
	}
	before := b.Streams[0].ID
	if !a.Equal(b) || !bytes.Equal(a.Encode(), b.Encode()) {
		t.Errorf("%s\n%s", a.Encode(), b.Encode())
	}
	if b.Streams[0].ID != before {
		t.Error("Encode reorders the plan that it is given")
	}
	empty := &Plan{Format: Format, ExperimentLabel: "experiment", LookbackMillis: 300_000}
	if back, err := Decode(empty.Encode()); err != nil || !back.Equal(empty) {
		t.Errorf("a plan without streams: %v", err)
	}
}

// TestPL2_EveryFieldCounts changes each field in turn: the bytes differ, and Diff sees it, but for those of Begin.
func TestPL2_EveryFieldCounts(t *testing.T) {
	base := samplePlan(t)
	var walk func(v reflect.Value, path string, f func(path string, v reflect.Value))
	walk = func(v reflect.Value, path string, f func(path string, v reflect.Value)) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), path+"."+v.Type().Field(i).Name, f)
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i), path+"[]", f)
			}
		case reflect.Map:
			f(path, v)
		default:
			f(path, v)
		}
	}
	n := 0
	walk(reflect.ValueOf(base).Elem(), "", func(string, reflect.Value) { n++ })
	if n < 40 {
		t.Fatalf("the sample has only %d values", n)
	}
	for i := range n {
		p := samplePlan(t)
		k := 0
		var at string
		walk(reflect.ValueOf(p).Elem(), "", func(path string, v reflect.Value) {
			if k++; k-1 != i {
				return
			}
			at = path
			switch v.Kind() {
			case reflect.Int, reflect.Int64:
				v.SetInt(v.Int() + 1)
			case reflect.Uint64:
				v.SetUint(v.Uint() + 1)
			case reflect.String:
				v.SetString(v.String() + "x")
			case reflect.Map:
				v.Set(reflect.ValueOf(map[string]string{"a": "2"}))
			default:
				t.Fatalf("%s is a %s", path, v.Kind())
			}
		})
		if bytes.Equal(base.Encode(), p.Encode()) {
			t.Errorf("%s does not show in the bytes", at)
		}
		if strings.HasPrefix(at, ".Streams[]") && !strings.HasSuffix(at, ".ID") && !strings.HasSuffix(at, ".RetentionMillis") {
			if _, err := Decode(p.Encode()); err == nil {
				t.Errorf("%s changes, and the id still holds", at)
			}
			continue // such a stream has another ID, which Diff goes by
		}
		moment := at == ".FromSeq" || at == ".CoverageMillis"
		if c := Diff(base, p); c.Empty() != moment || p.Equal(base) != moment {
			t.Errorf("%s: Diff says %+v", at, c)
		}
	}
}

// TestPL2_DecodeIsStrict: what Encode would not write is refused.
func TestPL2_DecodeIsStrict(t *testing.T) {
	good := string(samplePlan(t).Encode())
	change := func(old, new string) string {
		if strings.Count(good, old) == 0 {
			t.Fatalf("%q is not in %s", old, good)
		}
		return strings.Replace(good, old, new, 1)
	}
	first := samplePlan(t).Streams[0]
	for name, text := range map[string]string{
		"empty":             "",
		"null":              "null",
		"no object":         "[]",
		"no format":         "{}",
		"format 0":          change(`"format":1`, `"format":0`),
		"format 2":          change(`"format":1`, `"format":2`),
		"format of text":    change(`"format":1`, `"format":"1"`),
		"unknown field":     change(`"format":1`, `"format":1,"more":2`),
		"repeated field":    change(`"format":1`, `"format":1,"format":1`),
		"other case":        change(`"lookback_ms"`, `"Lookback_ms"`),
		"white space":       change(`"format":1`, `"format": 1`),
		"cut":               good[:len(good)-1],
		"trailing":          good + "{}",
		"trailing space":    good + "\n",
		"number as float":   change(`"lookback_ms":300000`, `"lookback_ms":3e5`),
		"lookback 0":        change(`"lookback_ms":300000`, `"lookback_ms":0`),
		"negative timer":    change(`"idle_grace_ms":5000`, `"idle_grace_ms":-1`),
		"huge horizon":      change(`"correction_horizon_ms":600000`, `"correction_horizon_ms":9223372036854775807`),
		"beyond int64":      change(`"correction_horizon_ms":600000`, `"correction_horizon_ms":9223372036854775808`),
		"no label":          change(`"experiment_label":"run"`, `"experiment_label":""`),
		"null streams":      change(`"streams":[{`, `"streams":null,"x":[{`),
		"narrow pane":       change(`"pane_ms":15000`, `"pane_ms":999`),
		"other pane":        change(`"pane_ms":15000`, `"pane_ms":30000`),
		"other id":          strings.ReplaceAll(good, first.ID.String(), "0000000000000001"),
		"upper case id":     strings.ReplaceAll(good, first.ID.String(), strings.ToUpper(first.ID.String())),
		"unknown stream":    change(`"streams":["`, `"streams":["0000000000000001","`),
		"bad matcher type":  change(`"type":"="`, `"type":"=="`),
		"bad membership":    change(`"closed":"right"`, `"closed":"both"`),
		"bad policy":        change(`"late":"correct"`, `"late":"ignore"`),
		"bad layout":        change(`"layout":"panes"`, `"layout":"pane"`),
		"no retention":      change(`"retention_ms":604800000`, `"retention_ms":0`),
		"every too often":   change(`"every_ms":15000`, `"every_ms":999`),
		"no name":           change(`"name":"load"`, `"name":""`),
		"the same name":     change(`"name":"ratio"`, `"name":"load"`),
		"order of names":    change(`"name":"load"`, `"name":"zload"`),
		"label without key": change(`"labels":{"a"`, `"labels":{""`),
	} {
		if p, err := Decode([]byte(text)); err == nil {
			t.Errorf("%s: decoded as %s", name, p.Encode())
		} else if !strings.HasPrefix(err.Error(), "plan: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Decode(make([]byte, MaxPlanBytes+1)); err == nil || !strings.Contains(err.Error(), "33554433") {
		t.Errorf("a plan beyond the bound: %v", err)
	}
	if _, err := Decode([]byte(good)); err != nil {
		t.Errorf("the unchanged plan: %v", err)
	}
}

// TestValidateSeesWhatIsThereTwice: streams and names.
func TestValidateSeesWhatIsThereTwice(t *testing.T) {
	p := samplePlan(t)
	p.Streams = append(p.Streams, p.Streams[0])
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "there twice") {
		t.Errorf("a stream: %v", err)
	}
	p = samplePlan(t)
	p.Materializations = append(p.Materializations, p.Materializations[0])
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "there twice") {
		t.Errorf("a materialization: %v", err)
	}
	p = samplePlan(t)
	m := &p.Materializations[0]
	m.Streams = append(m.Streams, m.Streams[0])
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "there twice") {
		t.Errorf("a stream of a materialization: %v", err)
	}
}

// TestDiffWithNothing: the first plan and the last.
func TestDiffWithNothing(t *testing.T) {
	p := samplePlan(t)
	if c := Diff(nil, p); len(c.StreamsAdded) != 3 || len(c.MaterializationsAdded) != 2 || !c.Settings || len(c.StreamsKept) != 0 {
		t.Errorf("%+v", c)
	}
	if c := Diff(p, nil); len(c.StreamsRemoved) != 3 || len(c.MaterializationsRemoved) != 2 || !c.Settings {
		t.Errorf("%+v", c)
	}
	if c := Diff(nil, nil); !c.Empty() {
		t.Errorf("%+v", c)
	}
}

// FuzzDecodePlan: nothing panics, and what is accepted is written back as the same bytes.
func FuzzDecodePlan(f *testing.F) {
	f.Add(samplePlan(f).Encode())
	f.Add((&Plan{Format: Format, ExperimentLabel: "experiment", LookbackMillis: 1}).Encode())
	f.Add(samplePlan(f).Begin(900, -5, []uint64{3, 40}).Encode())
	f.Add([]byte(`{"format":1}`))
	f.Add([]byte(`{"format":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil {
			return
		}
		if !bytes.Equal(p.Encode(), b) {
			t.Fatalf("PL2: %q is written back as %q", b, p.Encode())
		}
		for i := range p.Streams {
			if _, err := p.Streams[i].LabelMatchers(); err != nil {
				t.Fatal(err)
			}
			p.Streams[i].BucketEnd(-1)
		}
		if c := Diff(p, p); !c.Empty() {
			t.Fatalf("%+v", c)
		}
	})
}

// What is said of the moment at which a plan comes into force is written and read back, and makes no other plan of it.
func TestPL2_Begin(t *testing.T) {
	p := samplePlan(t)
	for _, q := range []*Plan{p.Begin(1, 77, nil), p.Begin(900, -5, []uint64{3, 40}), p.Begin(900, 0, nil)} {
		back, err := Decode(q.Encode())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(q, back); d != "" {
			t.Error(d)
		}
		if changes := Diff(p, q); !p.Equal(q) || !changes.Empty() {
			t.Errorf("another plan: %+v", changes)
		}
	}
	if a, b := p.Begin(1, 77, nil).Covered(), p.Begin(900, -5, nil).Covered(); a != math.MinInt64 || b != -5 {
		t.Error(a, b)
	}
	many := make([]uint64, MaxGenerations+1)
	for i := range many {
		many[i] = uint64(i + 1)
	}
	covered := *p
	covered.CoverageMillis = 5
	for name, q := range map[string]*Plan{
		"out of order": p.Begin(5, 5, []uint64{4, 3}), "zero": p.Begin(5, 5, []uint64{0}), "too many": p.Begin(5, 5, many), "coverage": &covered,
	} {
		if _, err := Decode(q.Encode()); err == nil {
			t.Error(name)
		}
	}
}
