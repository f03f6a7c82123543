package sample

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"tidemark/log"
)

// atRemoval is a log handler that is told when TSDB is about to remove chunk files of the head: what it says right before.
type atRemoval struct {
	slog.Handler
	about func()
}

func (a atRemoval) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "Head GC completed" {
		a.about()
	}
	return nil
}

func (a atRemoval) Enabled(context.Context, slog.Level) bool { return true }
func (a atRemoval) WithAttrs([]slog.Attr) slog.Handler       { return a }
func (a atRemoval) WithGroup(string) slog.Handler            { return a }

// apply applies the events of the log that the copy does not have, in this goroutine.
func (r *rig) apply() {
	r.t.Helper()
	applied, err := r.copy.Applied()
	if err != nil {
		r.t.Fatal(err)
	}
	reader := r.log.NewReader(applied + 1)
	for applied < r.log.Head() {
		ev, err := reader.Next()
		if err == nil {
			err = r.copy.Apply(r.t.Context(), []*log.Event{ev})
		}
		if err != nil {
			r.t.Fatal(err)
		}
		applied = ev.Seq
	}
}

// Late samples that would begin the first chunk file come in the very moment in which a compaction removes what there is of them. How
// long that moment lasts is not known, so the removal waits for a while that is different each time.
func TestE5_TheFirstChunkFileIsBegunBesideNoRemoval(t *testing.T) {
	const hour = 3_600_000
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 25 {
		spins := rng.IntN(4000)
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			removing := make(chan struct{})
			var once sync.Once
			r := newRig(t, Options{Logger: slog.New(atRemoval{about: func() {
				once.Do(func() { close(removing) })
				for range spins {
					runtime.Gosched()
				}
			}})})
			r.caughtUp()
			r.stall()
			want := content{}
			send := func(all ...float) {
				want.first(all)
				r.floats(all...)
			}
			late := func(from int64) (all []float) {
				for i := range int64(40) { // more than a chunk holds
					all = append(all, float{"late", from + 1000*i, float64(i)})
				}
				return all
			}
			send(float{"a", 0, 1}, float{"late", 3 * hour, 2}, float{"a", 4 * hour, 3})
			r.apply() // the head is due
			send(late(2*hour + 60_000)...)
			<-removing
			r.apply()
			r.copy.maintaining.Lock() // until the removal has ended
			r.copy.maintaining.Unlock()
			send(late(2*hour + 600_000)...)
			r.apply()
			r.want(want) // what was written to the wrong place shows
		})
	}
}
