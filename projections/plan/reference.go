package plan

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// WriteReference writes a configuration with every key that there is: its help, and its default where it has one. It is made of the
// types themselves, and is a configuration that means the same as an empty one. What has no default stands as a comment.
func WriteReference(w io.Writer) error {
	r := reference{w: w}
	r.say("# Every key of tidemark.yml with its default.\n")
	r.mapping(reflect.ValueOf(*Default()), "", "")
	return r.err
}

// exampleEntry is the element of materializations that the reference shows.
func exampleEntry() Entry {
	return Entry{
		Name: "latency_p95", Expr: "quantile_over_time(0.95, request_duration_seconds[5m])", Every: Duration(15e9),
		Layout: LayoutPanes, Closed: Right, Late: Correct, Retention: DefaultRetention,
	}
}

type reference struct {
	w   io.Writer
	err error
}

func (r *reference) say(format string, args ...any) {
	if r.err == nil {
		_, r.err = fmt.Fprintf(r.w, format, args...)
	}
}

// mapping writes the fields of a struct. prefix begins every line, before its indentation.
func (r *reference) mapping(v reflect.Value, prefix, indent string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "" || key == "-" {
			continue
		}
		r.say("%s%s# %s\n", prefix, indent, f.Tag.Get("help"))
		if scalar := v.Field(i).Kind() != reflect.Slice && v.Field(i).Kind() != reflect.Map; options == "omitempty" && scalar && v.Field(i).IsZero() {
			r.field(key, v.Field(i), "# ", indent) // it is off
			continue
		}
		r.field(key, v.Field(i), prefix, indent)
	}
}

func (r *reference) field(key string, v reflect.Value, prefix, indent string) {
	_, scalar := v.Interface().(yaml.Marshaler)
	switch {
	case v.Type() == reflect.TypeFor[[]Entry]():
		r.say("# %s%s:\n# %s  -\n", indent, key, indent)
		r.mapping(reflect.ValueOf(exampleEntry()), "# ", indent+"    ")
	case v.Type() == reflect.TypeFor[Access]():
		r.say("# %s%s: {grafana: [%s], prometheus: [%s], ops: [%s]}\n", indent, key, AccessRead, AccessWrite, AccessAdmin)
	case v.Kind() == reflect.Slice:
		r.say("# %s%s: [rules/*.yml]\n", indent, key)
	case v.Kind() == reflect.Struct && !scalar:
		r.say("%s%s%s:\n", prefix, indent, key)
		r.mapping(v, prefix, indent+"  ")
	case v.Kind() == reflect.String && v.Len() == 0:
		r.say("# %s%s: \"\"\n", indent, key)
	default:
		text, err := yaml.Marshal(v.Interface())
		if err != nil {
			r.err = err
			return
		}
		r.say("%s%s%s: %s", prefix, indent, key, text)
	}
}
