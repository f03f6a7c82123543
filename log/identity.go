package log

import "github.com/zeebo/xxh3"

// Identity names this log: what is folded from it carries the identity, so that views are never read beside another log.
// It is 16 bytes, drawn from the store's random key when the log was made, and tells nothing about the key.
func (l *Log) Identity() []byte {
	h := xxh3.HashString128Seed("tidemark log identity", ^l.dict.seed).Bytes()
	return h[:]
}
