package sample

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"tidemark/log"
)

// families hold the newest metadata of each metric family. Senders log all entries of a family at once, so an event's entries
// replace those that were known.
type families struct {
	mu     sync.Mutex
	byName map[string][]log.Metadata
	unsafe bool // changed since it was last written
}

func (f *families) load(all []log.Metadata) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byName = make(map[string][]log.Metadata)
	f.unsafe = false
	for _, m := range all {
		f.byName[m.Family] = append(f.byName[m.Family], m)
	}
}

func (f *families) add(entries []log.Metadata) {
	if len(entries) == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := make(map[string]bool)
	for _, m := range entries {
		have, known := f.byName[m.Family]
		switch {
		case !known && len(f.byName) >= maxFamilies:
			continue
		case !fresh[m.Family]:
			fresh[m.Family] = true
			have = nil
		case len(have) >= maxPerFamily:
			continue
		}
		f.byName[m.Family] = append(have, m)
		f.unsafe = true
	}
}

// changed returns everything if it is to be written, and takes it for written.
func (f *families) changed() ([]log.Metadata, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.unsafe {
		return nil, false
	}
	f.unsafe = false
	return f.sorted(), true
}

// unsaved says that writing failed.
func (f *families) unsaved() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unsafe = true
}

func (f *families) sorted() []log.Metadata {
	var all []log.Metadata
	for _, entries := range f.byName {
		all = append(all, entries...)
	}
	slices.SortFunc(all, func(a, b log.Metadata) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Help, b.Help), cmp.Compare(a.Unit, b.Unit))
	})
	return all
}

// Metadata returns what senders said of a family, or of all for "", ordered by family.
func (p *Projection) Metadata(ctx context.Context, family string) ([]log.Metadata, error) {
	if _, err := p.Wait(ctx, true); err != nil {
		return nil, err
	}
	p.families.mu.Lock()
	defer p.families.mu.Unlock()
	if family != "" {
		return slices.Clone(p.families.byName[family]), nil
	}
	return p.families.sorted(), nil
}
