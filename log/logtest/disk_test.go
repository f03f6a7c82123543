package logtest

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Images are taken of a disk on which files are locked, linked and reused all the time. Seen to stand still with any of the three left out.
func TestImagesBesideNestedLocks(t *testing.T) {
	const rounds = 3000
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	fs := SerialLocks(mem, &mu)
	for _, name := range []string{"file", "reused-0"} {
		f, err := fs.Create(name, vfs.WriteCategoryUnspecified)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	work := map[string]func(i int) error{
		"lock": func(int) error {
			c, err := fs.Lock("LOCK")
			if err != nil {
				return err
			}
			return c.Close()
		},
		"link": func(i int) error { return fs.Link("file", fmt.Sprint("link-", i)) },
		"reuse": func(i int) error {
			f, err := fs.ReuseForWrite(fmt.Sprint("reused-", i), fmt.Sprint("reused-", i+1), vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			return f.Close()
		},
	}
	over := make(chan error, len(work))
	for name, do := range work {
		go func() {
			for i := range rounds {
				if err := do(i); err != nil {
					over <- fmt.Errorf("%s: %w", name, err)
					return
				}
			}
			over <- nil
		}()
	}
	tick := time.NewTicker(100 * time.Microsecond)
	defer tick.Stop()
	limit := time.After(time.Minute)
	images := make(chan struct{}, 1)
	for left := len(work); left > 0; {
		select {
		case err := <-over:
			if err != nil {
				t.Error(err)
			}
			left--
		case <-tick.C:
			select {
			case images <- struct{}{}:
				go func() {
					mu.Lock()
					mem.CrashClone(vfs.CrashCloneCfg{})
					mu.Unlock()
					<-images
				}()
			default:
			}
		case <-limit:
			t.Fatal("it stands still")
		}
	}
	images <- struct{}{}
}
