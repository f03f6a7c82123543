package bucket

import (
	"errors"
	"reflect"
	"testing"
)

// The record of an evicted series is decoded as it was encoded, or refused as damaged.
func FuzzDecodeEvicted(f *testing.F) {
	e := Evicted{Ref: 1, Seq: 300, Streams: []EvictedStream{{Stream: 1 << 63, Closed: -1}, {Stream: 2, Closed: 1 << 50}}}
	f.Add(e.encode())
	f.Add((&Evicted{Ref: 1}).encode())
	f.Add([]byte{evictedVersion + 1, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeEvicted(1, b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatalf("%v is not called damage", err)
			}
			return
		}
		again, err := decodeEvicted(1, e.encode())
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("%+v becomes %+v, %v", e, again, err)
		}
	})
}

// A list of evicted series is read to its end, or refused as damaged.
func FuzzEachLeaver(f *testing.F) {
	e := Evicted{Ref: 77, Group: 5}
	list := appendLeaver(nil, &e, &EvictedStream{First: -3, Last: 4})
	f.Add(appendLeaver(list, &e, &EvictedStream{First: 4, Last: 4}))
	f.Add(list[:len(list)-1])
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := eachLeaver(b, 4, func(uint64, int64, uint32) error { return nil }); err != nil && !errors.Is(err, ErrDamaged) {
			t.Fatalf("%v is not called damage", err)
		}
	})
}
