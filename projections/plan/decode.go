package plan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// decodeStrict decodes one YAML document into v: unknown fields, repeated fields and further documents are errors. It
// returns the document's tree, nil for an empty one.
func decodeStrict(text []byte, file string, v any) (*yaml.Node, error) {
	root, more, err := document(text)
	switch {
	case err != nil:
		return nil, &ConfigError{File: file, Msg: err.Error()}
	case more:
		return nil, &ConfigError{File: file, Msg: "something follows the first YAML document"}
	}
	if err := noNullElements(root, file); err != nil {
		return nil, err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	err = d.Decode(v)
	var te *yaml.TypeError
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return root, nil
	case errors.As(err, &te):
		errs := make([]error, len(te.Errors))
		for i, msg := range te.Errors {
			errs[i] = typeError(root, file, msg)
		}
		return nil, errors.Join(errs...)
	default:
		return nil, &ConfigError{File: file, Msg: err.Error()}
	}
}

// document returns the tree of the first document of a text, nil if the text is empty, and whether more follows it.
func document(text []byte) (root *yaml.Node, more bool, err error) {
	root = new(yaml.Node)
	d := yaml.NewDecoder(bytes.NewReader(text))
	switch err := d.Decode(root); {
	case errors.Is(err, io.EOF):
		return nil, false, nil
	case err != nil:
		return nil, false, err
	}
	var second yaml.Node
	return root, !errors.Is(d.Decode(&second), io.EOF), nil
}

// scalar hands a scalar's text to parse. Errors carry line and column, from which typeError finds the field.
func scalar(n *yaml.Node, parse func(string) error) error {
	err := errors.New("want a single value, not a list or a mapping")
	if n.Kind == yaml.ScalarNode {
		err = parse(n.Value)
	}
	if err == nil {
		return nil
	}
	return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d.%d: %s", n.Line, n.Column, err)}}
}

// typeError rewrites a message of the decoder, "line 3: what", or of scalar, "line 3.7: what", to name the field instead
// of a Go type.
func typeError(root *yaml.Node, file, msg string) *ConfigError {
	e := &ConfigError{File: file, Msg: msg}
	defer func() { e.Field, e.Msg = shorten(e.Field), shorten(e.Msg) }() // they repeat what the file holds
	pos, what, ok := strings.Cut(strings.TrimPrefix(msg, "line "), ": ")
	if !ok {
		return e
	}
	l, c, exact := strings.Cut(pos, ".")
	line, err := strconv.Atoi(l)
	if err != nil {
		return e
	}
	e.Line, e.Msg = line, what
	if exact {
		column, err := strconv.Atoi(c)
		if err == nil {
			e.Field = fieldAt(root, line, func(n *yaml.Node) bool { return n.Column == column })
		}
		return e
	}
	what, _, _ = strings.Cut(what, " in type ")
	switch {
	case strings.HasPrefix(what, "field ") && strings.HasSuffix(what, " not found"):
		e.Msg = "unknown " + strings.TrimSuffix(what, " not found")
	case strings.HasPrefix(what, "cannot unmarshal "):
		tag, _, _ := strings.Cut(strings.TrimPrefix(what, "cannot unmarshal "), " ")
		e.Field = fieldAt(root, line, func(n *yaml.Node) bool { return n.ShortTag() == tag })
		e.Msg = strings.Replace(what, "cannot unmarshal ", "cannot read ", 1)
		// The decoder ends with the Go type, which says little to who wrote the file.
		if i := strings.LastIndex(e.Msg, " into "); i >= 0 {
			e.Msg = e.Msg[:i] + " as " + goKind(e.Msg[i+len(" into "):])
		}
	default:
		e.Msg = what
	}
	return e
}

// goKind says in words what a Go type wants.
func goKind(t string) string {
	switch {
	case t == "bool":
		return "true or false"
	case t == "string":
		return "text"
	case strings.HasPrefix(t, "[]"):
		return "a list"
	default:
		return "a mapping"
	}
}

// noNullElements refuses empty elements of lists: the decoder would drop them without a word.
func noNullElements(root *yaml.Node, file string) error {
	var errs []error
	eachField(root, "", func(field string, value *yaml.Node) {
		if strings.HasSuffix(field, "]") && value.ShortTag() == "!!null" {
			errs = append(errs, &ConfigError{File: file, Line: value.Line, Field: field, Msg: "empty"})
		}
	})
	return errors.Join(errs...)
}

// fieldAt returns the field whose value starts on a line and is the one that is meant, empty if none or several are.
func fieldAt(root *yaml.Node, line int, meant func(*yaml.Node) bool) string {
	var found []string
	eachField(root, "", func(field string, value *yaml.Node) {
		if value.Line == line && !strings.HasPrefix(field, "[") && meant(value) {
			found = append(found, field)
		}
	})
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// eachField calls f for each value of the tree under its field. Aliases are not followed: they may be nested to explode.
func eachField(n *yaml.Node, field string, f func(field string, value *yaml.Node)) {
	if n == nil {
		return
	}
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			eachField(c, field, f)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if field != "" {
				key = field + "." + key
			}
			f(key, n.Content[i+1])
			eachField(n.Content[i+1], key, f)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			at := fmt.Sprintf("%s[%d]", field, i)
			f(at, c)
			eachField(c, at, f)
		}
	}
}

// find returns the node at a path of keys (string) and positions (int), and the line of the deepest node on the way to it.
// Merged keys are not looked into.
func find(root *yaml.Node, path ...any) (n *yaml.Node, line int) {
	n = root
	if n != nil && n.Kind == yaml.DocumentNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	for _, step := range path {
		if n != nil && n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		if n == nil {
			return nil, line
		}
		var next *yaml.Node
		switch step := step.(type) {
		case int:
			if n.Kind == yaml.SequenceNode && step < len(n.Content) {
				next = n.Content[step]
				line = next.Line
			}
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == step {
					next = n.Content[i+1]
					line = n.Content[i].Line
				}
			}
		}
		n = next
	}
	return n, line
}

// fieldName writes a path as it is printed: materializations[2].every.
func fieldName(path ...any) string {
	var b strings.Builder
	for _, step := range path {
		switch step := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		}
	}
	return b.String()
}
