package master

import (
	"encoding/binary"
	"fmt"

	"tidemark/log"
)

// The tags of keys; see the package comment.
const (
	keyMeta    = 'm'
	keyRecord  = 'r'
	keyTask    = 't'
	keyFailure = 'f'
	keyNoop    = 'n'

	keyHeader = 'v'
	keyRow    = 's'
	keyUpkeep = 'u'
	keyPoint  = 'y'
)

// Spaces of the views' store.
const (
	FoldSpace     = 1
	SnapshotSpace = 2
)

// appendName appends a name so that it sorts as it does and its end is found.
func appendName(b []byte, name string) []byte {
	for i := range len(name) {
		b = append(b, name[i])
		if name[i] == 0 {
			b = append(b, 255)
		}
	}
	return append(b, 0, 1)
}

// takeName is the inverse of appendName; rest is what comes behind.
func takeName(b []byte) (name string, rest []byte, err error) {
	var out []byte
	for i := 0; i+1 < len(b); i++ {
		if b[i] != 0 {
			out = append(out, b[i])
			continue
		}
		switch b[i+1] {
		case 255:
			out = append(out, 0)
			i++
		case 1:
			return string(out), b[i+2:], nil
		default:
			return "", nil, fmt.Errorf("%w: key %x", ErrCorrupt, b)
		}
	}
	return "", nil, fmt.Errorf("%w: key %x", ErrCorrupt, b)
}

func nameKey(tag byte, name string) []byte { return appendName([]byte{tag}, name) }

func kindKey(tag byte, t target) []byte { return appendName([]byte{tag, byte(t.kind)}, t.name) }

func parseKindKey(k []byte) (target, error) {
	if len(k) < 2 {
		return target{}, fmt.Errorf("%w: key %x", ErrCorrupt, k)
	}
	name, rest, err := takeName(k[2:])
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: key %x", ErrCorrupt, k)
	}
	return target{log.TaskKind(k[1]), name}, err
}

func numberKey(tag byte, n uint64) []byte { return binary.BigEndian.AppendUint64([]byte{tag}, n) }

func rowKey(name string, version uint64) []byte {
	return binary.BigEndian.AppendUint64(nameKey(keyRow, name), version)
}

func parseRowKey(k []byte) (name string, version uint64, err error) {
	name, rest, err := takeName(k[1:])
	if err == nil && len(rest) != 8 {
		err = fmt.Errorf("%w: key %x", ErrCorrupt, k)
	}
	if err != nil {
		return "", 0, err
	}
	return name, binary.BigEndian.Uint64(rest), nil
}
