package bucket

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// data path 5 of 6: publish. Closed buckets reach disk here, by checkpoints.

const (
	storeVersion = 3

	keyMeta       = 'm'
	keyCheckpoint = 'c'
	keyRecent     = 'h'
	keyPiece      = 'p'
	keyGeneration = 'g'
	keyLeave      = 'd'
	keyEvicted    = 'v'
	keyLaterGone  = 'V'
	keyExperiment = 'x'
	keyLaterCount = 'X'

	defaultCacheBytes    = 64 << 20
	defaultMemTableBytes = 32 << 20
)

// ErrOtherLog says that the views were folded from another log than the one at hand.
var ErrOtherLog = errors.New("bucket: the views belong to another log; delete them and they are folded again")

// ErrVersion says that the views were written by another version of the format.
var ErrVersion = errors.New("bucket: the views have another format; delete them and they are folded again")

// ErrDamaged says that the files of the views do not fit together: some are gone, or their bytes have changed. A crash can do
// that, because the views are not written for it. Discard them and fold again.
var ErrDamaged = errors.New("bucket: the views are damaged")

// ErrStuck says that a flush does not come to its end: the disk fails, or is full.
var ErrStuck = errors.New("bucket: the views cannot be flushed to disk")

// Damaged says whether an error means that the bytes of the views are not what was written.
func Damaged(err error) bool {
	return errors.Is(err, ErrDamaged) || errors.Is(err, ErrCorruptPiece) || errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, pebble.ErrDBNotPristine) || pebble.IsCorruptionError(err)
}

// Options of a Store. The zero value is usable.
type Options struct {
	FS         vfs.FS       // default vfs.Default
	Logger     *slog.Logger // default: discards
	CacheBytes int64        // block cache, default 64 MiB
	Room       func() error // why the disk has no room for anything now; default: there is room
}

// Store keeps pieces and shard checkpoints in a Pebble database of its own.
type Store struct {
	db       *pebble.DB
	fs       vfs.FS
	identity []byte // of the log
	health   *health
	room     func() error

	flushing sync.Mutex
	pending  <-chan struct{} // of a flush that is not known to have ended
	sealing  sync.Mutex      // one base at a time

	pins        pins
	maintaining sync.Mutex // held while maintenance looks at pieces again and changes them
	evicting    sync.Mutex // held while a checkpoint is applied, and while records of evicted series are looked at again and deleted

	touching sync.Mutex
	merging  map[spot]struct{} // one writer each
	touched  map[spot]int      // pieces that checkpoints have written and no compaction has dealt with; bounded by maxTouched
}

// Open opens the store in dir, or creates it. identity names the log that is folded into it: ErrOtherLog if the store was
// made for another one, ErrVersion if it has another format, ErrDamaged if its files do not fit together.
func Open(dir string, identity []byte, opts Options) (*Store, error) {
	return openStore(dir, identity, opts, &pebble.Options{})
}

// OpenReadOnly opens an existing store, with the errors of Open, and changes nothing on disk: Commit fails.
func OpenReadOnly(dir string, identity []byte, opts Options) (*Store, error) {
	return openStore(dir, identity, opts, &pebble.Options{ReadOnly: true})
}

func openStore(dir string, identity []byte, opts Options, po *pebble.Options) (*Store, error) {
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = defaultCacheBytes
	}
	if opts.Room == nil {
		opts.Room = func() error { return nil }
	}
	s := &Store{health: newHealth(opts.Logger), room: opts.Room, fs: opts.FS, identity: bytes.Clone(identity)}
	cache := pebble.NewCache(opts.CacheBytes)
	defer cache.Unref()
	po.FS, po.Cache, po.DisableWAL = calmFS{opts.FS, s.health}, cache, true
	po.FormatMajorVersion = pebble.FormatNewest
	po.MemTableSize = defaultMemTableBytes
	po.Logger = s.health
	po.EventListener = s.health.listener()
	// A commit must not wait for a disk that fails: what piles up is bounded by health.writable instead.
	po.MemTableStopWritesThreshold = math.MaxInt32
	po.L0StopWritesThreshold = math.MaxInt32
	db, err := openPebble(dir, po, s.health)
	if Damaged(err) {
		return nil, fmt.Errorf("%w: %s: %w", ErrDamaged, dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("bucket: open %s: %w", dir, err)
	}
	s.db = db
	if err := s.checkMeta(identity, po.ReadOnly); err != nil {
		if Damaged(err) {
			err = fmt.Errorf("%w: %s: %w", ErrDamaged, dir, err)
		}
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Discard removes the store in dir.
func Discard(dir string, opts Options) error {
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if err := opts.FS.RemoveAll(dir); err != nil {
		return fmt.Errorf("bucket: discard %s: %w", dir, err)
	}
	return nil
}

// checkMeta writes the meta record of a new store and compares that of an old one. A store without one is empty: the record
// is the first that is written, and a flush keeps the order.
func (s *Store) checkMeta(identity []byte, readOnly bool) error {
	want := append([]byte{storeVersion}, identity...)
	v, closer, err := s.db.Get([]byte{keyMeta})
	if errors.Is(err, pebble.ErrNotFound) {
		if readOnly {
			return nil
		}
		return s.db.Set([]byte{keyMeta}, want, pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("bucket: read meta: %w", err)
	}
	defer closer.Close()
	switch {
	case len(v) == 0 || v[0] != storeVersion:
		return ErrVersion
	case !bytes.Equal(v, want):
		return ErrOtherLog
	}
	return nil
}

// Checkpoint is what Commit writes in one batch.
type Checkpoint struct {
	Shard  int    // 0..255
	Seq    uint64 // of the last event that State and Tables reflect
	State  []byte
	Tables []*Table // what was closed since the last checkpoint that was committed, oldest first

	Generations []GenerationState // of the generations that the shard's fold has taken over
	Experiments []ExperimentRow   // those that have changed since the last checkpoint that was committed

	Recent     []Recent // writes and starts up to Seq that no checkpoint holds yet, in any order
	KeepRecent uint64   // those before this sequence are dropped

	Evicted []Evicted // series that left the shard's memory since the last checkpoint that was committed, oldest first
}

// Recent is what is kept of a write or start event, to find writes that come again.
type Recent struct {
	Seq     uint64
	LogTime int64 // ms
	Start   bool
	Hash    [16]byte // of a write's content
}

// Commit writes a checkpoint (P3). It is durable after the next Flush. It fails while flushes do.
func (s *Store) Commit(c Checkpoint) error {
	if err := s.writable(); err != nil {
		return err
	}
	chunks := make(map[Key][]*chunk)
	room := len(c.State) + 4096
	for _, t := range c.Tables {
		for k, cs := range t.blocks {
			chunks[k] = append(chunks[k], cs...)
		}
		room += t.bytes + 2*t.puts
	}
	b := s.db.NewBatchWithSize(room)
	defer b.Close()
	var piece []byte
	var lay layout
	for k, cs := range chunks {
		piece = lay.appendPiece(piece[:0], cs)
		if err := b.Set(pieceKey(k, c.Shard, c.Seq), piece, nil); err != nil {
			return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
		}
	}
	if err := setRecent(b, c.Recent, c.KeepRecent); err != nil {
		return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
	}
	if err := setGenerations(b, c.Shard, c.Generations); err != nil {
		return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
	}
	if err := setEvicted(b, c.Shard, c.Evicted); err != nil {
		return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
	}
	if err := setExperiments(b, 0, c.Shard, c.Experiments); err != nil {
		return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
	}
	if plantedStateApart {
		v := binary.BigEndian.AppendUint64(make([]byte, 0, 8+len(c.State)), c.Seq)
		_ = s.db.Set([]byte{keyCheckpoint, byte(c.Shard)}, append(v, c.State...), pebble.NoSync)
		_ = s.db.Flush()
	}
	state := b.SetDeferred(2, 8+len(c.State)) // put where it goes, as it is the larger part of the batch
	state.Key[0], state.Key[1] = keyCheckpoint, byte(c.Shard)
	binary.BigEndian.PutUint64(state.Value, c.Seq)
	copy(state.Value[8:], c.State)
	if err := state.Finish(); err != nil {
		return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
	}
	s.evicting.Lock()
	err := s.db.Apply(b, pebble.NoSync)
	s.evicting.Unlock()
	if err != nil {
		return fmt.Errorf("bucket: commit shard %d: %w", c.Shard, err)
	}
	for k := range chunks {
		s.touch(k, c.Shard)
	}
	return s.health.writable()
}

func recentKey(seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{keyRecent}, seq)
}

func setRecent(b *pebble.Batch, add []Recent, keep uint64) error {
	if keep > 0 {
		if err := b.DeleteRange(recentKey(0), recentKey(keep), nil); err != nil {
			return err
		}
	}
	for i := range add {
		v := binary.BigEndian.AppendUint64(nil, uint64(add[i].LogTime))
		if !add[i].Start {
			v = append(v, add[i].Hash[:]...)
		}
		if err := b.Set(recentKey(add[i].Seq), v, nil); err != nil {
			return err
		}
	}
	return nil
}

// Recent returns the writes and starts that are kept, up to a sequence, in their order.
func (s *Store) Recent(upTo uint64) ([]Recent, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: recentKey(0), UpperBound: recentKey(upTo + 1)})
	if err != nil {
		return nil, fmt.Errorf("bucket: read recent writes: %w", err)
	}
	defer it.Close()
	var out []Recent
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return nil, fmt.Errorf("bucket: read recent writes: %w", err)
		}
		if len(it.Key()) != 9 || len(v) != 8 && len(v) != 24 {
			return nil, fmt.Errorf("%w: record of a recent write with %d bytes", ErrDamaged, len(v))
		}
		e := Recent{Seq: binary.BigEndian.Uint64(it.Key()[1:]), LogTime: int64(binary.BigEndian.Uint64(v)), Start: len(v) == 8}
		copy(e.Hash[:], v[8:])
		out = append(out, e)
	}
	if err := it.Error(); err != nil {
		return nil, fmt.Errorf("bucket: read recent writes: %w", err)
	}
	return out, nil
}

// writable says why nothing can be written now, or nil. A disk that is full is not tried: a flush that fails is harmless, but when its
// entry in the list of files fails, Pebble calls that fatal, and it is over until the next start.
func (s *Store) writable() error {
	if err := s.health.writable(); err != nil {
		return err
	}
	if err := s.room(); err != nil {
		return fmt.Errorf("%w: %w", ErrStuck, err)
	}
	return s.flushEnded()
}

// flushEnded fails while a flush that was given up on has still not ended: what is committed would pile up behind it.
func (s *Store) flushEnded() error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if s.pending == nil {
		return nil
	}
	select {
	case <-s.pending:
		s.pending = nil
		return nil
	default:
		return fmt.Errorf("%w: the last flush has not ended", ErrStuck)
	}
}

// AwaitFlush waits for a flush that was given up on, if there is one, behind which nothing can be committed. It fails like Flush.
func (s *Store) AwaitFlush(ctx context.Context) error {
	if err := s.flushEnded(); !errors.Is(err, ErrStuck) {
		return err
	}
	return s.Flush(ctx)
}

// Flush makes everything committed before it durable. It fails when an attempt to do so fails, though the store goes on
// trying, or when ctx ends.
func (s *Store) Flush(ctx context.Context) error {
	s.flushing.Lock()
	defer s.flushing.Unlock()
	if err := s.health.readable(); err != nil {
		return err
	}
	fault := s.health.nextFault()
	// What was committed since stands behind a flush that has not ended yet, so that one is waited for first.
	for behind := s.pending != nil; ; behind = false {
		if s.pending == nil {
			flushed, err := s.db.AsyncFlush()
			if err != nil {
				return fmt.Errorf("bucket: flush: %w", err)
			}
			s.pending = flushed
		}
		select {
		case <-s.pending:
			s.pending = nil
		case <-fault:
			if err := s.health.writable(); err != nil {
				return err
			}
			return fmt.Errorf("%w: an attempt failed", ErrStuck)
		case <-s.health.over:
			return s.health.ended() // a flush that is still to make its table never ends
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrStuck, ctx.Err())
		}
		if !behind {
			return s.health.writable()
		}
	}
}

// State returns the newest checkpoint of a shard; ok is false if there is none.
func (s *Store) State(shard int) (seq uint64, state []byte, ok bool, err error) {
	return s.sequenced([]byte{keyCheckpoint, byte(shard)}, fmt.Sprintf("shard %d", shard))
}

// Newest returns the newest sequence that any checkpoint reflects; 0 if there is none.
func (s *Store) Newest() (uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyCheckpoint}, UpperBound: []byte{keyCheckpoint + 1}})
	if err != nil {
		return 0, fmt.Errorf("bucket: read checkpoints: %w", err)
	}
	defer it.Close()
	var newest uint64
	for it.First(); it.Valid(); it.Next() {
		v, err := it.ValueAndErr()
		if err == nil && len(v) < 8 {
			err = fmt.Errorf("%w: checkpoint of %d bytes", ErrDamaged, len(v))
		}
		if err != nil {
			return 0, fmt.Errorf("bucket: read checkpoints: %w", err)
		}
		newest = max(newest, binary.BigEndian.Uint64(v))
	}
	if err := it.Error(); err != nil {
		return 0, fmt.Errorf("bucket: read checkpoints: %w", err)
	}
	return newest, nil
}

// Bytes returns the size of the store's files.
func (s *Store) Bytes() uint64 { return s.db.Metrics().DiskSpaceUsage() }

// Close flushes nothing: call Flush before for a clean stop.
func (s *Store) Close() error {
	close(s.health.closing)
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("bucket: close: %w", err)
	}
	return nil
}

// pieceKey orders pieces by stream, block, shard and age.
func pieceKey(k Key, shard int, seq uint64) []byte {
	b := make([]byte, 0, 26)
	b = append(b, keyPiece)
	b = binary.BigEndian.AppendUint64(b, k.Stream)
	b = binary.BigEndian.AppendUint64(b, uint64(k.Block)^(1<<63))
	b = append(b, byte(shard))
	return binary.BigEndian.AppendUint64(b, seq)
}

// parsePieceKey is the inverse of pieceKey.
func parsePieceKey(b []byte) (k Key, shard int, seq uint64, err error) {
	if len(b) != 26 || b[0] != keyPiece {
		return Key{}, 0, 0, fmt.Errorf("bucket: piece key %x", b)
	}
	k.Stream = binary.BigEndian.Uint64(b[1:])
	k.Block = int64(binary.BigEndian.Uint64(b[9:]) ^ (1 << 63))
	return k, int(b[17]), binary.BigEndian.Uint64(b[18:]), nil
}
