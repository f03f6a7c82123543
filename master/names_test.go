package master

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Searching all names at once finds what searching one after the other does, also where a match would go over the end of a name.
func TestSearchOfAllNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringOfN(rapid.SampledFrom([]rune("ab/\x00ü")), 1, 8, -1)
		all := rapid.SliceOfNDistinct(name, 0, 40, rapid.ID[string]).Draw(t, "names")
		slices.Sort(all)
		s := &Snapshot{names: new(nameIndex)}
		for _, n := range all {
			if rapid.Bool().Draw(t, "hot") {
				s.rows = append(s.rows, &Row{Name: n})
			} else {
				s.retired = append(s.retired, n)
			}
		}
		text := rapid.StringOfN(rapid.SampledFrom([]rune("ab/\x00ü")), 0, 4, -1).Draw(t, "text")
		for _, which := range []Which{WhichAll, WhichRetired, WhichHot} {
			q := ListRequest{Search: text, State: which, Limit: 200}
			var want, got []string
			for _, n := range all {
				if hot := s.row(n) != nil; strings.Contains(n, text) && (which == WhichAll || hot == (which == WhichHot)) {
					want = append(want, n)
				}
			}
			if which == WhichHot {
				rows, total := s.pageOf(s.rows, q)
				for _, r := range rows {
					got = append(got, r.Name)
				}
				if total != len(want) {
					t.Fatalf("%d of %d", total, len(want))
				}
			} else {
				got = s.matches(q)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("search %q in %q: %q, want %q", text, all, got, want)
			}
		}
	})
}
