package sample

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tidemark/log"
)

// Checkpoint makes what was applied durable, and notes how far that goes: while samples come out of order, no further than their last
// compaction. Events may be applied beside it.
func (p *Projection) Checkpoint(ctx context.Context) error {
	p.checkpointing.Lock()
	defer p.checkpointing.Unlock()
	err := p.checkpoint(ctx)
	if err != nil {
		p.failures.Add(1)
		return fmt.Errorf("exact copy: checkpoint: %w", err)
	}
	p.failures.Store(0)
	return nil
}

// checkpoint saves what is safe without the log of what came out of order: everything, once that stands in blocks.
func (p *Projection) checkpoint(ctx context.Context) error {
	seq := log.Seq(p.applied.Load())
	if late := p.counts.late.Load(); late > p.compacted { // of the events up to seq, or later ones
		if time.Since(p.compactedAt) < p.opts.lateInterval {
			return nil
		}
		if err := p.compactLate(ctx); err != nil {
			return err
		}
		p.compacted, p.compactedAt = late, time.Now()
	}
	return p.save(seq)
}

// save makes the files durable, and notes that they reflect seq.
func (p *Projection) save(seq log.Seq) error {
	if err := p.syncSegments(); err != nil {
		return err
	}
	if all, dirty := p.families.changed(); dirty {
		if err := replaceFile(p.dir, metadataFile, encodeMetadata(all)); err != nil {
			p.families.unsaved()
			return err
		}
	}
	p.noting.Lock()
	defer p.noting.Unlock()
	if seq <= log.Seq(p.durable.Load()) {
		return nil
	}
	if err := p.writeCheckpoint(seq); err != nil {
		return err
	}
	p.durable.Store(uint64(seq))
	return nil
}

// writeCheckpoint replaces CHECKPOINT. The caller holds p.noting, or nothing runs yet.
func (p *Projection) writeCheckpoint(seq log.Seq) error {
	c := checkpoint{identity: p.events.Identity(), seq: seq, expired: p.expired.Load(), refused: p.refused.Load()}
	return replaceFile(p.dir, checkpointFile, c.encode())
}

// syncSegments syncs what TSDB appends to without syncing it. Blocks it syncs itself, before it gives up what they replace.
func (p *Projection) syncSegments() error {
	if p.synced == nil {
		p.synced = make(map[string]string)
	}
	for _, name := range []string{"chunks_head", "wbl", "wal"} {
		dir := filepath.Join(p.dir, tsdbDir, name)
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		newest := p.synced[name]
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.IsDir() || e.Name() < newest })
		for _, e := range entries {
			// TSDB may just have removed it, as what it held is in a block.
			if err := syncPath(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			p.synced[name] = max(p.synced[name], e.Name())
		}
		if err := syncPath(dir); err != nil {
			return err
		}
	}
	return nil
}

// Durable returns the last event that a restart does not ask for again.
func (p *Projection) Durable() log.Seq { return log.Seq(p.durable.Load()) }

// CheckpointFailures returns how many checkpoints failed in a row.
func (p *Projection) CheckpointFailures() int64 { return p.failures.Load() }

// Notes say how far a copy goes that no process has open.
type Notes struct {
	Durable log.Seq // a start asks for no event up to here
	Newest  log.Seq // the copy may reflect the events up to here
}

// Noted returns what is noted of the copy in dir; ok is false if there is none. Notes that are damaged count as no copy: a start
// begins anew.
func Noted(dir string) (n Notes, ok bool, err error) {
	n, _, ok, err = readNotes(dir)
	return n, ok, err
}

// readNotes returns with the notes the identity of the log that they are about.
func readNotes(dir string) (n Notes, identity []byte, ok bool, err error) {
	note, err := readFile(filepath.Join(dir, checkpointFile))
	if err != nil || note == nil {
		return n, nil, false, err
	}
	c, err := decodeCheckpoint(note)
	if err != nil {
		return n, nil, false, nil
	}
	n.Durable, n.Newest = c.seq, c.seq
	raw, err := readFile(filepath.Join(dir, appliedFile))
	if err != nil {
		return n, nil, false, err
	}
	if a, bad := decodeApplied(raw); bad == nil {
		n.Newest = max(c.seq, a.seq)
	}
	return n, c.identity, true, nil
}
