package pane

import (
	"bytes"
	"sync"

	"tidemark/projections/plan"
)

// planCache decodes the plan in force once for all shards, each of which has it in its state and takes it from every plan event. A
// nil cache remembers nothing. Plans are shared by the shards and never changed.
type planCache struct {
	mu        sync.Mutex
	spec      []byte // as it came
	plan      *plan.Plan
	canonical []byte // of plan; nil until it was asked for
}

// decode is plan.Decode.
func (c *planCache) decode(spec []byte) (*plan.Plan, error) {
	if c == nil {
		return plan.Decode(spec)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.plan != nil && bytes.Equal(spec, c.spec) {
		return c.plan, nil
	}
	p, err := plan.Decode(spec)
	if err == nil {
		c.spec, c.plan, c.canonical = bytes.Clone(spec), p, nil
	}
	return p, err
}

// encode is p.Encode. What it returns is not to be changed.
func (c *planCache) encode(p *plan.Plan) []byte {
	if c == nil {
		return p.Encode()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p != c.plan {
		return p.Encode()
	}
	if c.canonical == nil {
		c.canonical = p.Encode()
	}
	return c.canonical
}
