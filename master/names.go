package master

import (
	"slices"
	"strings"
	"sync"
)

// nameIndex is every name of a snapshot, hot or retired, in one order and as one text. Snapshots with the same names share it; whoever
// searches first makes it, for all.
type nameIndex struct {
	once  sync.Once
	names []string
	text  string  // the names, one behind the other
	ends  []int64 // of each name within the text
}

// index returns the index of a snapshot's names.
func (s *Snapshot) index() *nameIndex {
	x := s.names
	x.once.Do(func() {
		hot, gone := s.rows, s.retired
		x.names = make([]string, 0, len(hot)+len(gone))
		size := 0
		for len(hot) > 0 || len(gone) > 0 {
			var name string
			if len(gone) == 0 || len(hot) > 0 && hot[0].Name < gone[0] {
				name, hot = hot[0].Name, hot[1:]
			} else {
				name, gone = gone[0], gone[1:]
			}
			x.names = append(x.names, name)
			size += len(name)
		}
		var b strings.Builder
		b.Grow(size)
		x.ends = make([]int64, len(x.names))
		for i, name := range x.names {
			b.WriteString(name)
			x.ends[i] = int64(b.Len())
		}
		x.text = b.String()
	})
	return x
}

// search calls yield with the names that contain a text, in their order. It goes through all names at once: its cost is that of reading
// their bytes, and grows with the matches only beyond that.
func (x *nameIndex) search(text string, yield func(name string)) {
	if text == "" {
		for _, name := range x.names {
			yield(name)
		}
		return
	}
	at := 0 // everything before it is searched
	for i := 0; i < len(x.names); {
		found := strings.Index(x.text[at:], text)
		if found < 0 {
			return
		}
		at += found
		k, _ := slices.BinarySearch(x.ends[i:], int64(at)+1)
		if i += k; int64(at+len(text)) > x.ends[i] {
			at++ // it goes over the end of a name
			continue
		}
		yield(x.names[i])
		at = int(x.ends[i])
		i++
	}
}

// sameNames says that two snapshots have the same names.
func sameNames(prev, next *Snapshot) bool {
	if len(prev.rows) != len(next.rows) || len(prev.retired) != len(next.retired) {
		return false
	}
	for i, r := range next.rows {
		if r != prev.rows[i] && r.Name != prev.rows[i].Name {
			return false
		}
	}
	return len(next.retired) == 0 || &next.retired[0] == &prev.retired[0] || slices.Equal(next.retired, prev.retired)
}
