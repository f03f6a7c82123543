package master

import (
	"slices"
	"testing"
)

// The history tells late samples apart, keeps them over its bytes, and spreads them over the time since the round before.
func TestHistory_LateSamples(t *testing.T) {
	const hour = 3600_000
	var h history
	for _, p := range []*point{
		{Totals: Totals{Time: 22 * hour}},
		{Totals: Totals{Time: 23 * hour}, gains: []gain{{id: 7, samples: 7200, late: 3600}, {id: 9, samples: 1}}},
		{Totals: Totals{Time: 24 * hour}, gains: []gain{{id: 7, samples: 3600}}},
	} {
		again, err := decodePoint(p.encode())
		if err != nil || !slices.Equal(again.gains, p.gains) {
			t.Fatalf("%+v came back as %+v, %v", p, again, err)
		}
		h.add(again)
	}
	samples, late := h.rates(7, 24*hour, 24)
	if samples[21] != 0 || samples[22] != 2 || samples[23] != 1 || late[22] != 1 || late[23] != 0 {
		t.Errorf("samples %v, late %v", samples[21:], late[21:])
	}
}

// What came late since the last round is the rise of the corrections; where a compaction has come between, at least what is left.
func TestScan_LateSamplesOfARound(t *testing.T) {
	for _, tc := range []struct{ before, after, late uint64 }{{0, 5, 5}, {5, 8, 3}, {8, 8, 0}, {8, 2, 2}} {
		w := &work{rows: map[string]*Row{}}
		w.take(&Row{Name: "x", ID: 1, Samples: 10, Corrections: tc.before}, &Row{Name: "x", Samples: 20, Corrections: tc.after})
		if want := []gain{{id: 1, samples: 10, late: tc.late}}; !slices.Equal(w.gains, want) {
			t.Errorf("from %d to %d corrections: %+v", tc.before, tc.after, w.gains)
		}
	}
}

// The last write is the last in the log, whatever the clock said then: after a retirement a clock that was set back shows.
func TestRow_LastWriteBehindAClockStep(t *testing.T) {
	rec := newRecord()
	rec.lastWrite = 5_000
	if row := rec.row("x", &Observation{LastWrite: 4_000}, 0); row.LastWrite != 4_000 {
		t.Errorf("last write %d, and it was at 4000 by a clock that was set back", row.LastWrite)
	}
	if row := rec.row("x", &Observation{LastWrite: never}, 0); row.LastWrite != 5_000 {
		t.Errorf("last write %d, and nothing came since 5000", row.LastWrite)
	}
}
