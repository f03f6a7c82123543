package pane

import (
	"context"
	"maps"
	"math"
	"slices"

	"tidemark/projections/bucket"
	"tidemark/projections/plan"
)

// PublishedEnds returns the ends of all closed, non-empty buckets that a stream of the plan in force keeps, increasing, as of some
// event not before the call. A stream that is not known, or is still being folded from the log, has none. Its cost is that of reading
// everything that the stream has published: it is for those who begin to keep what is computed from it.
func (p *Projection) PublishedEnds(ctx context.Context, id plan.StreamID) ([]int64, error) {
	var (
		views [Shards]bucket.ShardView
		key   uint64
		grid  bucket.Grid
		from  int64
	)
	const far = 2 * plan.MaxTimeMillis
	defer p.store.Pin()() // before the views are taken, until they are read
	_, err := p.cut(ctx, func(s *Shard, sh *shelf) {
		st := s.stream(id)
		if st == nil {
			return
		}
		v := &views[s.id]
		v.PieceSeq = sh.visible()
		for _, t := range append(sh.leaving[:len(sh.leaving):len(sh.leaving)], s.table) {
			t.AddTo(&v.View, st.key, math.MinInt64, math.MaxInt64)
		}
		if s.id == 0 {
			key, grid, from = st.key, st.grid, max(st.expired, -far)
		}
	})
	if err != nil || grid.Width == 0 {
		return nil, err
	}
	ends := make(map[int64]struct{})
	err = p.store.Collect(ctx, key, grid, from, far, views[:], func(_ int, b bucket.Bucket) error {
		ends[b.End] = struct{}{}
		return nil
	})
	return slices.Sorted(maps.Keys(ends)), err
}
