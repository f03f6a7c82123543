package plan

import (
	"maps"
	"slices"
)

// Changes says how one plan differs from another. Its lists are sorted.
type Changes struct {
	StreamsAdded     []StreamID
	StreamsRemoved   []StreamID
	StreamsKept      []StreamID // in both plans
	RetentionChanged []StreamID // those of StreamsKept that are retained for another time

	MaterializationsAdded   []string
	MaterializationsRemoved []string
	MaterializationsChanged []string // the same name with another content

	Settings bool // something that concerns all streams: timers, horizon, skew, lookback, experiment label
}

// Empty says that the plans are Equal.
func (c *Changes) Empty() bool {
	return !c.Settings && len(c.StreamsAdded)+len(c.StreamsRemoved)+len(c.RetentionChanged) == 0 &&
		len(c.MaterializationsAdded)+len(c.MaterializationsRemoved)+len(c.MaterializationsChanged) == 0
}

// Diff returns what changes when plan b takes the place of plan a. A nil plan stands for none: no streams, no
// materializations, and settings that differ from any.
func Diff(a, b *Plan) Changes {
	var c Changes
	as, bs := streamsByID(a), streamsByID(b)
	for _, id := range slices.Sorted(maps.Keys(bs)) {
		old, ok := as[id]
		switch {
		case !ok:
			c.StreamsAdded = append(c.StreamsAdded, id)
			continue
		case old != bs[id]:
			c.RetentionChanged = append(c.RetentionChanged, id)
		}
		c.StreamsKept = append(c.StreamsKept, id)
	}
	for _, id := range slices.Sorted(maps.Keys(as)) {
		if _, ok := bs[id]; !ok {
			c.StreamsRemoved = append(c.StreamsRemoved, id)
		}
	}
	am, bm := materializationsByName(a), materializationsByName(b)
	for _, name := range slices.Sorted(maps.Keys(bm)) {
		old, ok := am[name]
		switch {
		case !ok:
			c.MaterializationsAdded = append(c.MaterializationsAdded, name)
		case !old.equal(bm[name]):
			c.MaterializationsChanged = append(c.MaterializationsChanged, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(am)) {
		if _, ok := bm[name]; !ok {
			c.MaterializationsRemoved = append(c.MaterializationsRemoved, name)
		}
	}
	c.Settings = settingsOf(a) != settingsOf(b)
	return c
}

// streamsByID returns the retention of each stream: the identity of a stream is in its ID.
func streamsByID(p *Plan) map[StreamID]int64 {
	m := make(map[StreamID]int64)
	if p != nil {
		for i := range p.Streams {
			m[p.Streams[i].ID] = p.Streams[i].RetentionMillis
		}
	}
	return m
}

func materializationsByName(p *Plan) map[string]*Materialization {
	m := make(map[string]*Materialization)
	if p != nil {
		for i := range p.Materializations {
			m[p.Materializations[i].Name] = &p.Materializations[i]
		}
	}
	return m
}

func (m *Materialization) equal(o *Materialization) bool {
	ms, os := slices.Sorted(slices.Values(m.Streams)), slices.Sorted(slices.Values(o.Streams))
	return m.Name == o.Name && m.Expr == o.Expr && m.EveryMillis == o.EveryMillis && m.Layout == o.Layout &&
		m.Record == o.Record && maps.Equal(m.Labels, o.Labels) && m.RetentionMillis == o.RetentionMillis &&
		slices.Equal(ms, os) && slices.Equal(slices.Sorted(slices.Values(m.Reads)), slices.Sorted(slices.Values(o.Reads)))
}

// settings are the fields of a plan that concern all streams.
type settings struct {
	format                                                             int
	label                                                              string
	lookback, idleTimeout, idleGrace, openGrace, horizon, skew, future int64
}

func settingsOf(p *Plan) settings {
	if p == nil {
		return settings{}
	}
	return settings{
		p.Format, p.ExperimentLabel,
		p.LookbackMillis, p.IdleTimeoutMillis, p.IdleGraceMillis, p.OpenGraceMillis,
		p.HorizonMillis, p.ClockSkewMillis, p.MaxFutureMillis,
	}
}
