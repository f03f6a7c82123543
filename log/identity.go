package log

import (
	"fmt"

	"github.com/zeebo/xxh3"
)

// Identity names this log: what is folded from it carries the identity, so that views are never read beside another log.
// It is 16 bytes, drawn from the store's random key when the log was made, and tells nothing about the key.
func (l *Log) Identity() []byte {
	h := xxh3.HashString128Seed("tidemark log identity", ^l.dict.seed).Bytes()
	return h[:]
}

// HashAt returns the hash of the encoded event at seq, which names it and, as each event holds the hash of its predecessor,
// all before it. It is zero for 0, the place before the first event.
func (l *Log) HashAt(seq Seq) (Hash, error) {
	if seq == 0 {
		return Hash{}, nil
	}
	var h Hash
	found, err := l.store.get(eventKey(seq), func(value []byte) error {
		h = EventHash(value)
		return nil
	})
	if err != nil {
		return Hash{}, fmt.Errorf("hash of event %d: %w", seq, err)
	}
	if !found {
		return Hash{}, corrupt(seq, "event is missing")
	}
	return h, nil
}
