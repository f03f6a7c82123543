package pane

import (
	"math/rand/v2"
	"testing"

	"tidemark/log"
	"tidemark/projections/bucket"
)

// Whatever comes and goes, the queue holds what a slice and a map would: few contents and many, while it grows and shrinks, and when
// its numbers begin anew.
func TestRecentQueue_Model(t *testing.T) {
	for _, contents := range []int{1, 30, 3000, 1 << 40} {
		rng := rand.New(rand.NewPCG(1, uint64(contents)))
		q := recentQueue{first: recentNumbers - 30_000, next: recentNumbers - 30_000}
		var queue []bucket.Recent
		newest := map[log.Hash]log.Seq{}
		longest := 0
		for seq := uint64(1); seq < 100_000; seq++ {
			e := bucket.Recent{Seq: seq, LogTime: rng.Int64() - rng.Int64(), Start: rng.IntN(50) == 0}
			var want log.Seq
			if !e.Start {
				n := rng.IntN(contents)
				e.Hash = log.Hash{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24), byte(n >> 32), 15: byte(n)}
				want = newest[e.Hash]
				newest[e.Hash] = log.Seq(seq)
			}
			if got := q.push(e); got != want {
				t.Fatalf("%d contents: before %d stands %d, not %d", contents, seq, got, want)
			}
			queue = append(queue, e)
			pops := rng.IntN(2) // it grows
			if seq/30_000%2 == 1 {
				pops = rng.IntN(5) // and shrinks
			}
			for range min(pops, len(queue)) {
				if e := queue[0]; newest[e.Hash] == log.Seq(e.Seq) && !e.Start {
					delete(newest, e.Hash)
				}
				queue = queue[1:]
				q.pop()
			}
			longest = max(longest, len(queue))
			if q.len() != len(queue) || len(queue) > 0 && (q.at(0) != queue[0] || q.at(len(queue)-1) != queue[len(queue)-1]) {
				t.Fatalf("%d contents: at %d the queue is another", contents, seq)
			}
			if n := len(q.index); n > minRecentIndex && n > 8*(len(queue)+1) {
				t.Fatalf("%d contents: %d places for %d", contents, n, len(queue))
			}
			if n := len(q.pieces); n > len(queue)/recentPieceLen+2 {
				t.Fatalf("%d contents: %d pieces for %d", contents, n, len(queue))
			}
			for _, held := range q.pieces[len(q.pieces):cap(q.pieces)] {
				if held != nil {
					t.Fatalf("%d contents: a piece that is not used is held", contents)
				}
			}
		}
		for i, e := range queue {
			if q.at(i) != e {
				t.Fatalf("%d contents: entry %d is another", contents, i)
			}
		}
		taken := 0
		for _, place := range q.index {
			if place != 0 {
				taken++
			}
		}
		if taken != len(newest) {
			t.Errorf("%d contents: %d are found, not %d", contents, taken, len(newest))
		}
		if longest < 2*recentPieceLen {
			t.Errorf("%d contents: the longest queue was %d", contents, longest)
		}
	}
}

func BenchmarkRecentWrites(b *testing.B) {
	b.ReportAllocs()
	var q recentQueue
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; b.Loop(); i++ {
		var h log.Hash
		for k := range 2 {
			for j, v := 0, rng.Uint64(); j < 8; j, v = j+1, v>>8 {
				h[8*k+j] = byte(v)
			}
		}
		q.push(bucket.Recent{Seq: uint64(i + 1), LogTime: int64(i), Hash: h})
		if q.len() > 200_000 {
			q.pop()
		}
	}
	b.ReportMetric(float64(32*recentPieceLen*(len(q.pieces)+1)+4*len(q.index))/float64(q.len()), "B/entry")
}
