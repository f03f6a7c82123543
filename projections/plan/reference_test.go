package plan

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The reference names every key of every type of the configuration, with help; and it is a configuration that means what an empty one
// does, also with all that is commented out put in.
func TestReference(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	keys := 0
	var visit func(typ reflect.Type)
	visit = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if !f.IsExported() || key == "-" {
				continue
			}
			keys++
			help := f.Tag.Get("help")
			if help == "" || !strings.Contains(text, "# "+help+"\n") || !strings.Contains(text, " "+key+":") && !strings.Contains(text, "\n"+key+":") {
				t.Errorf("%s.%s (%q) has no help or is not in the reference", typ.Name(), f.Name, key)
			}
			switch ft := f.Type; {
			case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
				visit(ft.Elem())
			case ft.Kind() == reflect.Struct && ft != reflect.TypeFor[URL]():
				visit(ft)
			}
		}
	}
	visit(reflect.TypeFor[Config]())
	if keys < 30 {
		t.Errorf("%d keys", keys)
	}
	got, err := Parse([]byte(text), "")
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	if d := cmp.Diff(Default().String(), got.String()); d != "" {
		t.Errorf("it does not mean what an empty file does: %s", d)
	}
	var all []string
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# "); ok && (strings.Contains(rest, ": ") && strings.Contains(rest, "[") || strings.HasPrefix(rest, " ") || strings.HasSuffix(strings.TrimSpace(rest), "s:")) {
			if trimmed := strings.TrimSpace(rest); !strings.HasPrefix(trimmed, "#") && !strings.Contains(rest, "http_config_file") {
				line = rest
			}
		}
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			all = append(all, line)
		}
	}
	full, err := Parse([]byte(strings.Join(all, "")), "")
	if err != nil {
		t.Fatalf("%v in\n%s", err, strings.Join(all, ""))
	}
	if len(full.Materializations) != 1 || len(full.RuleFiles) != 1 || len(full.Access) != 3 {
		t.Errorf("with what is commented out: %+v", full)
	}
	if d := cmp.Diff(exampleEntry(), full.Materializations[0]); d != "" {
		t.Error(d)
	}
}
