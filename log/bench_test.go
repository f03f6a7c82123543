package log

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

const benchSeries = 2000

// benchColumns are what real senders send: one scrape of many series, of one kind or of several.
func benchColumns() map[string]func(*rand.Rand, int) float64 {
	counter := func(rng *rand.Rand, i int) float64 { return float64(1_000_000 + 37*i + rng.IntN(1000)) }
	gauge := func(rng *rand.Rand, _ int) float64 { return math.Round(math.Exp(3+rng.NormFloat64())*1000) / 1000 }
	float := func(rng *rand.Rand, _ int) float64 { return rng.NormFloat64() }
	return map[string]func(*rand.Rand, int) float64{
		"counter": counter, "gauge": gauge, "float": float,
		"mixed": func(rng *rand.Rand, i int) float64 {
			return []func(*rand.Rand, int) float64{counter, gauge, counter, gauge, float}[i/40%5](rng, i)
		},
	}
}

func benchWrite(value func(*rand.Rand, int) float64, perSeries int) *Write {
	rng := rand.New(rand.NewPCG(1, 2))
	b := NewWriteBuilder()
	fillBench(b, rng, value, perSeries)
	return b.Finish()
}

func fillBench(b *WriteBuilder, rng *rand.Rand, value func(*rand.Rand, int) float64, perSeries int) {
	for i := range benchSeries / perSeries {
		b.Series(SeriesRef(i + 1))
		base := value(rng, i)
		for j := range perSeries {
			v := base + float64(15*j)
			if perSeries == 1 {
				v = base
			}
			b.Sample(1_700_000_000_000+int64(15_000*j), v)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for kind, value := range benchColumns() {
		for _, perSeries := range []int{1, 10} {
			b.Run(fmt.Sprintf("op=decode/series=%d/runs=%d/kind=%s", benchSeries/perSeries, perSeries, kind), func(b *testing.B) {
				raw, err := AppendEvent(nil, &Event{Seq: 1, Body: benchWrite(value, perSeries)})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					if _, err := DecodeEvent(1, raw); err != nil {
						b.Fatal(err)
					}
				}
				perSample(b, len(raw))
			})
		}
	}
}

func perSample(b *testing.B, bytes int) {
	b.ReportMetric(float64(bytes)/benchSeries, "bytes/sample")
	b.ReportMetric(float64(b.N)*benchSeries/b.Elapsed().Seconds()/1e6, "Msamples/s")
}

func BenchmarkEncode(b *testing.B) {
	for kind, value := range benchColumns() {
		b.Run(fmt.Sprintf("op=encode/series=%d/kind=%s", benchSeries, kind), func(b *testing.B) {
			w := benchWrite(value, 1)
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if dst, err = appendColumns(dst[:0], w); err != nil {
					b.Fatal(err)
				}
			}
			perSample(b, len(dst))
		})
	}
}

func BenchmarkBuild(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	builder := NewWriteBuilder()
	b.Run(fmt.Sprintf("op=build/series=%d", benchSeries), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			builder.Reset()
			fillBench(builder, rng, func(*rand.Rand, int) float64 { return 1 }, 1)
			builder.Finish()
		}
		b.ReportMetric(float64(b.N)*benchSeries/b.Elapsed().Seconds()/1e6, "Msamples/s")
	})
}

func BenchmarkLookup(b *testing.B) {
	d := newDictionary(&memoryStore{}, 1, 1<<20, 1)
	var raws [benchSeries][]byte
	for i := range raws {
		raws[i] = appendLabels(nil, labels.FromStrings("__name__", "http_requests_total", "instance", fmt.Sprint("10.0.0.", i), "job", "api", "path", "/v1/things"))
		if _, err := d.Resolve(d.Hash(raws[i]), series(i)); err != nil {
			b.Fatal(err)
		}
	}
	b.Run(fmt.Sprintf("op=lookup/series=%d", benchSeries), func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, ok := d.Lookup(d.Hash(raws[i%benchSeries])); !ok {
				b.Fatal("not found")
			}
		}
	})
}

// BenchmarkAppend measures the whole way to durable on the disk of the machine.
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("op=append/series=%d/writers=%d", benchSeries, writers), func(b *testing.B) {
			l, err := Open(b.TempDir(), Options{})
			if err != nil {
				b.Fatal(err)
			}
			r := start(l)
			for i := range benchSeries {
				if _, err := l.Dictionary().Resolve(numbered(i), series(i)); err != nil {
					b.Fatal(err)
				}
			}
			value := benchColumns()["gauge"]
			var seed atomic.Uint64
			b.SetParallelism((writers + 1) / 2)
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				rng := rand.New(rand.NewPCG(1, seed.Add(1)))
				builder := NewWriteBuilder()
				for pb.Next() {
					builder.Reset()
					fillBench(builder, rng, value, 1)
					if _, err := l.Append(context.Background(), builder.Finish()); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)*benchSeries/b.Elapsed().Seconds()/1e6, "Msamples/s")
			b.ReportMetric(float64(b.N)/float64(max(1, r.Metrics().Batches)), "events/batch")
			if err := r.stop(); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkReplay reads and decodes a log from disk.
func BenchmarkReplay(b *testing.B) {
	const events = 500
	r := start(mustOpen(b, b.TempDir(), Options{}))
	for i := range benchSeries {
		if _, err := r.Dictionary().Resolve(numbered(i), series(i)); err != nil {
			b.Fatal(err)
		}
	}
	rng := rand.New(rand.NewPCG(1, 1))
	builder := NewWriteBuilder()
	bodies := make([]Body, events)
	for i := range bodies {
		builder.Reset()
		fillBench(builder, rng, benchColumns()["mixed"], 1)
		bodies[i] = builder.Finish()
	}
	if _, err := r.AppendAll(context.Background(), bodies...); err != nil {
		b.Fatal(err)
	}
	if err := r.store.db.Flush(); err != nil {
		b.Fatal(err)
	}
	b.Run(fmt.Sprintf("op=replay/series=%d/events=%d", benchSeries, events), func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := len(readAll(b, r.Log, 1)); n != events {
				b.Fatal(n)
			}
		}
		b.ReportMetric(float64(b.N)*events*benchSeries/b.Elapsed().Seconds()/1e6, "Msamples/s")
		tables := r.store.db.Metrics().Total().TablesSize
		b.ReportMetric(float64(tables)/events/benchSeries, "tablebytes/sample")
	})
	if err := r.stop(); err != nil {
		b.Fatal(err)
	}
}
