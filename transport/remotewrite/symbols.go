package remotewrite

// data path 1 of 6: decode and check.

import "fmt"

// maxSymbols bounds the symbol table of a request of version 2.0, whose index takes symbolBytes for each entry.
const (
	maxSymbols  = 1 << 20
	symbolBytes = 8
)

// Symbols is the index of the symbol table of one request: where in the body each symbol lies. It is used again for the
// next request.
type Symbols struct {
	body []byte
	at   []symbolAt
}

// symbolAt holds offsets in the decoded body. A snappy block has at most 2^32 bytes.
type symbolAt struct{ start, end uint32 }

// Len returns the number of symbols.
func (t *Symbols) Len() int { return len(t.at) }

// get returns a symbol; ok is false if there is none of this number. The bytes lie in the body.
func (t *Symbols) get(ref uint32) (symbol []byte, ok bool) {
	if uint64(ref) >= uint64(len(t.at)) {
		return nil, false
	}
	at := t.at[ref]
	return t.body[at.start:at.end:at.end], true
}

// fill indexes the symbols of a body that Count2 has accepted.
func (t *Symbols) fill(body []byte) {
	t.body, t.at = body, t.at[:0]
	for i := 0; i < len(body); {
		f, bad := nextField(body, i)
		if bad != wellFormed {
			panic("remotewrite: R1: symbols are read before they are counted: " + bad.String())
		}
		if f.num == request2Symbols {
			t.at = append(t.at, symbolAt{uint32(f.start), uint32(f.end)})
		}
		i = f.end
	}
}

// missing is the refusal of a series with a reference that leads nowhere.
func (t *Symbols) missing(ref uint32) refusal {
	return refusal{reason: ReasonReference, got: int64(ref), limit: int64(len(t.at))}
}

// checkFirst holds the rule that the first symbol is the empty string, so that a reference that was never set means nothing.
func (t *Symbols) checkFirst() error {
	if first, ok := t.get(0); ok && len(first) > 0 {
		return fmt.Errorf("%w, but %q", errFirstSymbol, echo(first))
	}
	return nil
}
