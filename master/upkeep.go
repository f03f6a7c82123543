package master

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"tidemark/projections/bucket"
)

const (
	// liveVersions is the number of snapshot versions that stay: the newest, and the one before it.
	liveVersions = 2
	// upkeepKeys bounds the keys that one chunk looks at; a chunk is one commit.
	upkeepKeys = 4096
	// upkeepInterval is the time between two passes.
	upkeepInterval = time.Minute
)

// upkeep knows which snapshot versions the store holds, and how reclaiming them goes.
type upkeep struct {
	mu             sync.Mutex
	oldest, newest uint64 // versions with a header; 0: none
	removed        uint64 // versions, by this process
	failures       uint64
	inRow          uint64
	lastSuccess    time.Time
	lastTook       time.Duration
}

func (u *upkeep) found(oldest, newest uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.oldest, u.newest = oldest, newest
}

func (u *upkeep) committed(version uint64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.newest = version
	if u.oldest == 0 {
		u.oldest = version
	}
}

// unreclaimed is the number of versions that are superseded and still there, whether upkeep runs or not (M11).
func (u *upkeep) unreclaimed() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.oldest == 0 || u.newest < u.oldest+liveVersions {
		return 0
	}
	return u.newest - u.oldest + 1 - liveVersions
}

func (u *upkeep) passed(took time.Duration, now time.Time, err error) uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lastTook = took
	if err != nil {
		u.failures++
		u.inRow++
		return u.inRow
	}
	u.inRow, u.lastSuccess = 0, now
	return 0
}

// cursor is where upkeep stands: everything up to a key is reclaimed for a target, which is the oldest version that stays.
type cursor struct {
	target  uint64
	headers bool   // rows are done
	from    []byte // of the rows
}

// encode returns the cursor: target:u, then 1 if the rows are done, else 0, then the key to go on with.
func (c *cursor) encode() []byte {
	b := binary.AppendUvarint(nil, c.target)
	if c.headers {
		return append(b, 1)
	}
	return append(append(b, 0), c.from...)
}

func decodeCursor(b []byte) (cursor, error) {
	target, n := binary.Uvarint(b)
	if n <= 0 || len(b) == n || b[n] > 1 {
		return cursor{}, fmt.Errorf("%w: cursor of upkeep", ErrCorrupt)
	}
	return cursor{target: target, headers: b[n] == 1, from: append([]byte(nil), b[n+1:]...)}, nil
}

// Upkeep reclaims superseded snapshot versions and points of the history that are too old, a chunk at a time, until nothing is left of
// what there was when it began, or ctx ends. Each chunk is one commit that moves the cursor, so that it goes on where it was cut off.
func (m *Master) Upkeep(ctx context.Context) error {
	begun := m.opts.Now()
	err := m.reclaim(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if n := m.upkeep.passed(m.opts.Now().Sub(begun), m.opts.Now(), err); err != nil {
		m.logger.Error("upkeep of the table of experiments failed", "consecutive", n, "err", err)
	}
	return err
}

func (m *Master) reclaim(ctx context.Context) error {
	for m.upkeep.unreclaimed() > 0 {
		c, err := m.cursor()
		if err != nil {
			return err
		}
		for done := false; !done; {
			if err := ctx.Err(); err != nil {
				return err
			}
			if done, err = m.chunk(&c); err != nil {
				return err
			}
		}
	}
	return m.reclaimHistory(ctx)
}

// cursor returns where upkeep goes on, or begins.
func (m *Master) cursor() (cursor, error) {
	v, ok, err := m.rows.Get([]byte{keyUpkeep})
	if err != nil {
		return cursor{}, err
	}
	if ok {
		return decodeCursor(v)
	}
	m.upkeep.mu.Lock()
	defer m.upkeep.mu.Unlock()
	return cursor{target: m.upkeep.newest - liveVersions + 1}, nil
}

// chunk reclaims one chunk, and reports whether it was the last.
func (m *Master) chunk(c *cursor) (done bool, err error) {
	b := &bucket.RowBatch{}
	next := *c
	versions := uint64(0)
	if c.headers {
		versions, done, err = m.headerChunk(c, b)
	} else {
		next.from, err = m.rowChunk(c, b)
		next.headers = next.from == nil
	}
	if err != nil {
		return false, err
	}
	if done {
		b.Delete([]byte{keyUpkeep})
	} else {
		b.Put([]byte{keyUpkeep}, next.encode())
	}
	if err := m.rows.Commit(b); err != nil {
		return false, err
	}
	*c = next
	m.upkeep.mu.Lock()
	defer m.upkeep.mu.Unlock()
	m.upkeep.removed += versions
	m.upkeep.oldest += versions
	return done, nil
}

// rowChunk deletes, of the rows from the cursor on, those that a newer version up to the target supersedes. It returns the key to go on
// with; nil at the end.
func (m *Master) rowChunk(c *cursor, b *bucket.RowBatch) (next []byte, err error) {
	type entry struct {
		key  []byte
		gone bool
	}
	var at string
	var of []entry // versions up to the target of one name, the oldest first
	flush := func() {
		if len(of) == 0 {
			return
		}
		last := of[len(of)-1]
		for _, e := range of[:len(of)-1] {
			b.Delete(e.key)
		}
		if last.gone {
			b.Delete(last.key)
		}
		of = of[:0]
	}
	seen := 0
	err = m.rows.Each([]byte{keyRow}, c.from, func(k, v []byte) (bool, error) {
		name, version, err := parseRowKey(k)
		if err != nil {
			return false, err
		}
		if name != at {
			flush()
			if seen >= upkeepKeys {
				next = append([]byte(nil), k...)
				return false, nil
			}
			at = name
		}
		seen++
		if version <= c.target {
			of = append(of, entry{append([]byte(nil), k...), len(v) == 0})
		}
		return true, nil
	})
	flush()
	return next, err
}

// headerChunk deletes headers before the target.
func (m *Master) headerChunk(c *cursor, b *bucket.RowBatch) (versions uint64, done bool, err error) {
	done = true
	err = m.rows.Each([]byte{keyHeader}, nil, func(k, _ []byte) (bool, error) {
		if len(k) != 9 {
			return false, fmt.Errorf("%w: key %x", ErrCorrupt, k)
		}
		if binary.BigEndian.Uint64(k[1:]) >= c.target {
			return false, nil
		}
		if versions == upkeepKeys {
			done = false
			return false, nil
		}
		versions++
		b.Delete(append([]byte(nil), k...))
		return true, nil
	})
	return versions, done, err
}

// reclaimHistory deletes the points that are too old.
func (m *Master) reclaimHistory(ctx context.Context) error {
	before := m.snap.Load().ScannedAt - historySpan.Milliseconds()
	for {
		b := &bucket.RowBatch{}
		if err := m.rows.Each([]byte{keyPoint}, nil, func(k, v []byte) (bool, error) {
			p, err := decodePoint(v)
			if err != nil || p.Time >= before || b.Len() == upkeepKeys {
				return false, err
			}
			b.Delete(append([]byte(nil), k...))
			return true, nil
		}); err != nil {
			return err
		}
		if b.Len() == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if err := m.rows.Commit(b); err != nil {
			return err
		}
	}
}
