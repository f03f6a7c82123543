package log

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
)

// What later generations of streams had counted goes with a retirement; without any of them the event has the bytes that it had before
// they were counted, and a list that is empty or out of order is refused on both sides.
func TestRetirementOfLaterGenerations(t *testing.T) {
	plain := &ExperimentRetired{Experiment: "x", AtVersion: 7, Parts: []RetiredPart{{Shard: 3, Series: 1, Samples: 2, Buckets: 3}}}
	full := *plain
	full.Later = []RetiredLater{{Generation: 4, Shard: 1, Buckets: 2}, {Generation: 4, Shard: 63}, {Generation: 9, Shard: 0, Buckets: 1 << 40}}
	bytesOf := func(b *ExperimentRetired) []byte {
		t.Helper()
		raw, err := AppendEvent(nil, &Event{Seq: 12, Body: b})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	short, long := bytesOf(plain), bytesOf(&full)
	if head := len(short) - crcSize; !bytes.Equal(short[headerSize:head], long[headerSize:head]) || len(long) <= len(short) {
		t.Errorf("the list does not stand behind the rest:\n%x\n%x", short, long)
	}
	for _, want := range []*ExperimentRetired{plain, &full} {
		ev, err := DecodeEvent(12, bytesOf(want))
		if err != nil || !reflect.DeepEqual(ev.Body, want) {
			t.Errorf("%+v, %v", ev, err)
		}
	}
	for _, later := range [][]RetiredLater{
		{{Generation: 4, Shard: 2}, {Generation: 4, Shard: 2}}, {{Generation: 5}, {Generation: 4}}, {{Generation: 0, Shard: 1}}, {{Generation: 4, Shard: MaxShards}},
	} {
		bad := *plain
		bad.Later = later
		if _, err := AppendEvent(nil, &Event{Seq: 12, Body: &bad}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", later, err)
		}
	}
	for _, tail := range [][]byte{{0}, {2, 4, 2, 0, 4, 2, 0}, {1, 0, 1, 1}} {
		raw := append(bytes.Clone(short[:len(short)-crcSize]), tail...)
		raw = reseal(12, append(raw, make([]byte, crcSize)...), func([]byte) {})
		if _, err := DecodeEvent(12, raw); err == nil {
			t.Errorf("a list of %x passes", tail)
		}
	}
}
