package api

import "unicode/utf8"

// Prometheus writes label names and values with one set of escapes and all other strings (errors, warnings, names in lists)
// with another, which is also safe inside HTML. Both are kept, because answers are compared byte for byte.

const hexDigits = "0123456789abcdef"

// appendPlain appends s as a JSON string in the way of label names and values: only what JSON demands is escaped.
func appendPlain(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' {
			b = appendEscape(append(b, s[from:i]...), c)
			from = i + 1
		}
	}
	return append(append(b, s[from:]...), '"')
}

// appendEscaped appends s as a JSON string in the way of all other strings: <, >, &, U+2028 and U+2029 are escaped too, and
// bytes that are not UTF-8 become U+FFFD.
func appendEscaped(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < 0x20 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
				b = appendEscape(append(b, s[from:i]...), c)
				from = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[from:i]...), `\ufffd`...)
			from = i + size
		case r == '\u2028', r == '\u2029':
			b = append(append(b, s[from:i]...), `\u202`...)
			b = append(b, hexDigits[r&0xF])
			from = i + size
		}
		i += size
	}
	return append(append(b, s[from:]...), '"')
}

func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	default:
		return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xF])
	}
}
