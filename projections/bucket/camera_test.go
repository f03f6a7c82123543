package bucket

import (
	"io"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// takenLock locks under the mutex of what takes images: the file system in memory asks for a lock of its own twice while it locks, and
// would wait for ever if an image were begun in between.
type takenLock struct {
	vfs.FS
	mu *sync.Mutex
}

func (f takenLock) Lock(name string) (io.Closer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.FS.Lock(name)
}
