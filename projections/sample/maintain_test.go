package sample

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
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

// Late samples that would begin the first chunk file come in the very moment in which a compaction removes what there is of them. To
// begin a file TSDB lists those that are there: thousands of others make that moment last.
func TestE5_TheFirstChunkFileIsBegunBesideNoRemoval(t *testing.T) {
	const (
		hour   = 3_600_000
		others = 10_000
	)
	for round := range 2 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			removing := make(chan struct{})
			var once sync.Once
			r := newRig(t, Options{Logger: slog.New(atRemoval{about: func() {
				once.Do(func() { close(removing) })
				for began := time.Now(); time.Since(began) < time.Millisecond; {
					runtime.Gosched() // an event is applied that far in less
				}
			}})})
			r.caughtUp()
			r.stall()
			for i := range others {
				if err := os.WriteFile(filepath.Join(r.dir, tsdbDir, chunksDir, fmt.Sprint("other", i)), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
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
			send(float{"a", 0, 1}, float{"late", 3 * hour, 2}, float{"b", 4 * hour, 3}) // no series has a full chunk
			r.apply()                                                                   // the head is due
			send(late(2*hour + 60_000)...)
			<-removing
			r.apply()
			func() { // until the removal has ended
				r.copy.maintaining.Lock()
				defer r.copy.maintaining.Unlock()
			}()
			for i := range others {
				if err := os.Remove(filepath.Join(r.dir, tsdbDir, chunksDir, fmt.Sprint("other", i))); err != nil {
					t.Fatal(err)
				}
			}
			send(late(2*hour + 600_000)...)
			r.apply()
			r.want(want) // what was written to the wrong place shows
		})
	}
}

// A checkpoint has TSDB compact, which then asks what to delete, which is noted before it goes: the two do not wait for each other.
func TestE2_RetentionDeletesBesideACheckpoint(t *testing.T) {
	const hour = 3_600_000
	r := newRig(t, Options{Retention: 4 * time.Hour})
	for _, newest := range []int64{4 * hour, 24 * hour} {
		r.floats(float{"a", newest, 1}, float{"a", newest - 3*hour, 2}) // the second comes out of order
		r.floats(float{"a", newest - 3*hour + 1, 3})
		r.caughtUp()
		ended := make(chan error, 1)
		go func() { ended <- r.copy.Checkpoint(t.Context()) }()
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(time.Minute):
			panic("the checkpoint does not end")
		}
	}
	if oldest := r.copy.Oldest(); oldest < hour || oldest > 20*hour {
		t.Errorf("a gap up to %d, and the block that ends at %d is to be deleted", oldest, 2*hour)
	}
}
