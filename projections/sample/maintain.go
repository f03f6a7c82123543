package sample

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// maintenanceInterval is the time between two rounds of what TSDB otherwise does on its own: move full chunks of the head to disk, and the
// head into blocks. A head that is due is moved at once.
const maintenanceInterval = time.Minute

// chunksDir is where TSDB keeps the head's full chunks.
const chunksDir = "chunks_head"

// stillTSDB keeps TSDB from doing anything on its own (E5). Its compactions end with stopCompaction.
func (p *Projection) stillTSDB(o *tsdb.Options) {
	o.BlockReloadInterval = time.Duration(1<<63 - 1)
	o.NewCompactorFunc = func(ctx context.Context, r prometheus.Registerer, l *slog.Logger, ranges []int64, pool chunkenc.Pool, o *tsdb.Options) (tsdb.Compactor, error) {
		ctx, p.stopCompaction = context.WithCancel(ctx)
		return tsdb.NewLeveledCompactorWithOptions(ctx, r, l, ranges, pool, tsdb.LeveledCompactorOptions{
			MaxBlockChunkSegmentSize:    o.MaxBlockChunkSegmentSize,
			EnableOverlappingCompaction: o.EnableOverlappingCompaction,
			PD:                          o.PostingsDecoderFactory,
			UseUncachedIO:               o.UseUncachedIO,
			BlockExcludeFilter:          o.BlockCompactionExcludeFunc,
			FloatChunkEncoding:          func() chunkenc.Encoding { return o.FloatChunkEncoding },
		})
	}
}

// maintain moves what is due: full chunks to disk, the head's older part into blocks, and small blocks into larger ones.
func (p *Projection) maintain(ctx context.Context) error {
	p.maintaining.Lock()
	defer p.maintaining.Unlock()
	p.db.ForceHeadMMap()
	return p.removing(func() error { return p.db.Compact(ctx) })
}

// compactLate puts what came out of order into blocks.
func (p *Projection) compactLate(ctx context.Context) error {
	p.maintaining.Lock()
	defer p.maintaining.Unlock()
	return p.removing(func() error { return p.db.CompactOOOHead(ctx) })
}

// removing runs what may remove chunk files of the head. p.maintaining is held, so that no other such work runs, and no chunk is written
// but by an event that is appended. Those are kept out too as long as no chunk file has been begun since TSDB was opened: see E5.
func (p *Projection) removing(work func() error) error {
	if p.chunkFileBegun {
		return work()
	}
	p.appending.Lock()
	defer p.appending.Unlock()
	now, err := p.chunkFiles()
	if err != nil {
		return err
	}
	for name := range now {
		if !p.chunksBefore[name] {
			p.chunkFileBegun, p.chunksBefore = true, nil
			break
		}
	}
	// Even if one has begun: it costs one round that nothing is appended meanwhile.
	err = work()
	if !p.chunkFileBegun {
		var lerr error
		if p.chunksBefore, lerr = p.chunkFiles(); lerr != nil { // a number that was removed may come again
			return errors.Join(err, lerr)
		}
	}
	return err
}

// chunkFiles lists the chunk files of the head.
func (p *Projection) chunkFiles() (map[string]bool, error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, tsdbDir, chunksDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make(map[string]bool, len(entries))
	for _, e := range entries {
		names[e.Name()] = true
	}
	return names, nil
}

// wake has a round of maintenance begin if the head is due: as TSDB has it, if it spans one and a half blocks.
func (p *Projection) wake() {
	h := p.db.Head()
	if h.MaxTime()-h.MinTime() <= p.blockMillis/2*3 {
		return
	}
	select {
	case p.due <- struct{}{}:
	default: // a round is to begin anyway
	}
}

// keepUp runs rounds of maintenance until ctx ends.
func (p *Projection) keepUp(ctx context.Context) {
	every := time.NewTicker(maintenanceInterval)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		case <-p.due:
		}
		if err := p.maintain(ctx); err != nil && ctx.Err() == nil {
			p.logger.Error("The exact copy cannot compact; it is tried again", "err", err)
		}
	}
}
