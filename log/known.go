package log

// Which label sets the store cannot have. Data path 1 of 6: decode and check.

import (
	"context"
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

const (
	// knownBits is the room for each hash. At capacity about one hash in a hundred that is not there seems to be.
	knownBits = 12
	// knownProbes is the number of bits that stand for a hash, all in one block.
	knownProbes = 6
	// blockWords is the length of a block: a line of the processor's cache.
	blockWords = 8
	// minKnown is the least capacity, and maxKnown the greatest, 384 MiB: a dictionary beyond it is asked for every new series.
	minKnown = 1 << 18
	maxKnown = 1 << 28
	// guessedKnown is the number of references up to which so many series are assumed, instead of counting those that are there.
	guessedKnown = 1 << 21
	// learnEvery is the number of definitions between two looks at the context.
	learnEvery = 4096
)

// known is a Bloom filter over the canonical hashes of series. What it does not have is neither in the store nor fresh; what it has may
// be. Nothing is ever taken out, so it is made anew when it is full. Whoever adds holds fresh; whoever asks holds nothing.
type known struct {
	words    []atomic.Uint64
	capacity int64
	count    atomic.Int64
}

func newKnown(capacity int64) *known {
	capacity = max(capacity, minKnown)
	blocks := (capacity*knownBits + 64*blockWords - 1) / (64 * blockWords)
	return &known{words: make([]atomic.Uint64, blocks*blockWords), capacity: capacity}
}

// place returns the block of a hash, and what picks the bits in it. The hash is keyed: no sender can fill one block.
func (k *known) place(h Hash) (block []atomic.Uint64, picks uint64) {
	blocks := uint64(len(k.words) / blockWords)
	at, _ := bits.Mul64(binary.LittleEndian.Uint64(h[:8]), blocks)
	return k.words[at*blockWords : (at+1)*blockWords], binary.LittleEndian.Uint64(h[8:])
}

func (k *known) add(h Hash) {
	block, picks := k.place(h)
	for range knownProbes {
		block[picks>>6%blockWords].Or(1 << (picks % 64))
		picks >>= 9
	}
	k.count.Add(1)
}

func (k *known) has(h Hash) bool {
	block, picks := k.place(h)
	for range knownProbes {
		if block[picks>>6%blockWords].Load()&(1<<(picks%64)) == 0 {
			return false
		}
		picks >>= 9
	}
	return true
}

func (k *known) full() bool { return k.count.Load() >= k.capacity }

// note makes a hash known that is fresh from now on. fresh must be locked.
func (d *Dictionary) note(h Hash) {
	if k := d.fresh.learning; k != nil {
		k.add(h)
	}
	if k := d.fresh.known; k != nil {
		if k.add(h); k.full() {
			select {
			case d.learn <- struct{}{}:
			default:
			}
		}
	}
}

// keepKnown reads what the store has, at first and whenever it is due, until ctx ends. As long as it has not, and where it cannot, the store
// is asked for every new series. It returns why it could not.
func (d *Dictionary) keepKnown(ctx context.Context) error {
	d.fresh.Lock()
	due := d.fresh.known == nil
	d.fresh.Unlock()
	for {
		if due {
			if err := d.learnKnown(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.learn:
			due = true
		}
	}
}

func (d *Dictionary) learnKnown(ctx context.Context) error {
	n, err := d.countKnown(ctx)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if 2*n > maxKnown {
		d.fresh.Lock()
		d.fresh.known = nil
		d.fresh.Unlock()
		return nil
	}
	next := newKnown(2 * n)
	// What leaves fresh before this is in the store when it is read; what is fresh now or later is added.
	d.fresh.Lock()
	for h := range d.fresh.byHash {
		next.add(h)
	}
	d.fresh.learning = next
	d.fresh.Unlock()
	err = d.eachHash(ctx, next.add)
	d.fresh.Lock()
	if d.fresh.learning = nil; err == nil && ctx.Err() == nil {
		d.fresh.known = next
	}
	d.fresh.Unlock()
	return err
}

// countKnown returns about how many definitions the store has.
func (d *Dictionary) countKnown(ctx context.Context) (n int64, err error) {
	d.fresh.Lock()
	n = int64(d.fresh.next)
	d.fresh.Unlock()
	if n <= guessedKnown {
		return n, nil
	}
	n = 0
	err = d.eachHash(ctx, func(Hash) { n++ })
	return n, err
}

// eachHash calls use with the canonical hash of every definition in the store, until ctx ends.
func (d *Dictionary) eachHash(ctx context.Context, use func(Hash)) error {
	i := 0
	return d.store.iterate([]byte{prefixHash}, []byte{prefixHash + 1}, func(key, _ []byte) (bool, error) {
		var h Hash
		if len(key) != 1+len(h) {
			return false, corrupt(0, "dictionary key of %d bytes", len(key))
		}
		copy(h[:], key[1:])
		use(h)
		i++
		return i%learnEvery != 0 || ctx.Err() == nil, nil
	}, nil)
}
