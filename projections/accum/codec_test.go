package accum

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/prometheus/prometheus/model/value"
)

// TestA4_GoldenBytes pins the bytes of format 2. A change here is a change of what stands on disk: it needs a new version.
//
//	fold end=MS [histogram]     samples "time value" or "repeat n time step value step period"; prints bytes and pane
//	decode end=MS               hex; prints the pane or the error
func TestA4_GoldenBytes(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.HasPrefix(path, "testdata/fuzz") {
			return
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var end int64
			d.ScanArgs(t, "end", &end)
			switch d.Cmd {
			case "fold":
				ts, vs := parseSamples(t, d)
				p := Fold(ts, vs)
				p.HasHistogram = d.HasArg("histogram")
				b := p.AppendEncode(nil, end)
				back, n, err := DecodePane(b, end)
				if err != nil || n != len(b) || !samePane(&p, &back) {
					d.Fatalf(t, "decoded %d of %d bytes to %s: %v", n, len(b), show(&back), err)
				}
				return fmt.Sprintf("%s\n%d bytes\n%s", wrap(hex.EncodeToString(b)), len(b), show(&p))
			case "decode":
				b, err := hex.DecodeString(strings.Join(strings.Fields(d.Input), ""))
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				p, n, err := DecodePane(b, end)
				if err != nil {
					return err.Error() + "\n"
				}
				return fmt.Sprintf("%d bytes\n%s", n, show(&p))
			default:
				d.Fatalf(t, "no command %s", d.Cmd)
				return ""
			}
		})
	})
}

func parseSamples(t *testing.T, d *datadriven.TestData) (ts []int64, vs []float64) {
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		number := func(i int) float64 {
			if bits, ok := strings.CutPrefix(f[i], "bits:"); ok {
				u, err := strconv.ParseUint(bits, 16, 64)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				return math.Float64frombits(u)
			}
			if f[i] == "stale" {
				return stale
			}
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			return v
		}
		if f[0] != "repeat" {
			at, err := strconv.ParseInt(f[0], 10, 64)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			ts, vs = append(ts, at), append(vs, number(1))
			continue
		}
		period := int(number(6))
		for i := range int(number(1)) {
			ts = append(ts, int64(number(2))+int64(i)*int64(number(3)))
			if step := number(5); step != 0 {
				vs = append(vs, number(4)+float64(i%period)*step)
			} else {
				vs = append(vs, number(4)) // not a sum, which would change the bits of a stale marker
			}
		}
	}
	return ts, vs
}

func wrap(s string) string {
	var b strings.Builder
	for len(s) > 96 {
		b.WriteString(s[:96] + "\n")
		s = s[96:]
	}
	return b.String() + s
}

func showValue(v float64) string {
	if math.IsNaN(v) {
		if value.IsStaleNaN(v) {
			return "stale"
		}
		return fmt.Sprintf("bits:%016x", math.Float64bits(v))
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

func show(p *Pane) string {
	var b strings.Builder
	if p.HasHistogram {
		b.WriteString("with histograms\n")
	}
	c := p.Columns
	if c == nil {
		for i := range p.T {
			fmt.Fprintf(&b, "%d %s\n", p.T[i], showValue(p.V[i]))
		}
		if len(p.T) == 0 {
			b.WriteString("no samples\n")
		}
		return b.String()
	}
	fmt.Fprintf(&b, "count %d\n", c.Count)
	if c.HasMarker {
		fmt.Fprintf(&b, "marker %d\n", c.Marker)
	}
	if c.Count == 0 {
		return b.String()
	}
	for _, s := range []struct {
		name string
		Sample
	}{{"first", c.First}, {"prev", c.Prev}, {"last", c.Last}} {
		fmt.Fprintf(&b, "%s %d %s\n", s.name, s.T, showValue(s.V))
	}
	fmt.Fprintf(&b, "min %s max %s\n", showValue(c.Min), showValue(c.Max))
	fmt.Fprintf(&b, "sum %s %s\n", showValue(c.Sum), showValue(c.Comp))
	fmt.Fprintf(&b, "resets %d correction %s changes %d\n", c.Resets, showValue(c.Correction), c.Changes)
	if w := c.Wide; w != nil {
		fmt.Fprintf(&b, "wide %s %s low %s high %s\n", showValue(w.Sum), showValue(w.Comp), showValue(w.Low), showValue(w.High))
	}
	if s := c.Sketch; s != nil {
		fmt.Fprintf(&b, "sketch nan %d low %d %v zero %d %v high %d\n", s.NaNs, s.Low, s.Negative, s.Zeros, s.Positive, s.High)
	}
	if c.Values != nil {
		b.WriteString("values")
		for _, v := range c.Values {
			b.WriteString(" " + showValue(v))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func samePane(a, b *Pane) bool {
	if a.HasHistogram != b.HasHistogram || len(a.T) != len(b.T) || (a.Columns == nil) != (b.Columns == nil) {
		return false
	}
	for i := range a.T {
		if a.T[i] != b.T[i] {
			return false
		}
	}
	if !sameBitsOf(a.V, b.V) {
		return false
	}
	return a.Columns == nil || sameColumns(a.Columns, b.Columns)
}

func sameColumns(x, y *Columns) bool {
	if x.Count != y.Count || x.Resets != y.Resets || x.Changes != y.Changes || x.HasMarker != y.HasMarker || x.Marker != y.Marker ||
		x.First.T != y.First.T || x.Prev.T != y.Prev.T || x.Last.T != y.Last.T || (x.Wide == nil) != (y.Wide == nil) ||
		(x.Values == nil) != (y.Values == nil) || !reflect.DeepEqual(x.Sketch, y.Sketch) {
		return false
	}
	if x.Wide != nil && !sameBitsOf(
		[]float64{x.Wide.Sum, x.Wide.Comp, x.Wide.Low, x.Wide.High}, []float64{y.Wide.Sum, y.Wide.Comp, y.Wide.Low, y.Wide.High}) {
		return false
	}
	return sameBitsOf(x.Values, y.Values) && sameBitsOf(
		[]float64{x.First.V, x.Prev.V, x.Last.V, x.Min, x.Max, x.Sum, x.Comp, x.Correction},
		[]float64{y.First.V, y.Prev.V, y.Last.V, y.Min, y.Max, y.Sum, y.Comp, y.Correction})
}

func sameBitsOf(a, b []float64) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if math.Float64bits(a[i]) != math.Float64bits(b[i]) {
			return false
		}
	}
	return true
}

// randomPane returns a pane of any shape, with times that need not be near its end.
func randomPane(r *rand.Rand) (Pane, int64) {
	n := r.IntN(2 * MaxSamples)
	if r.IntN(4) == 0 {
		n = r.IntN(2 * MaxValues)
	}
	ts, vs := randomSeries(r, r.IntN(numKinds), n, 1+r.Int64N(20_000), [...]float64{0, 0.1, 1}[r.IntN(3)])
	end := int64(0)
	if n > 0 {
		end = ts[n-1] + r.Int64N(1000)
	}
	if r.IntN(10) == 0 {
		end = int64(r.Uint64())
	}
	p := Fold(ts, vs)
	p.HasHistogram = r.IntN(2) == 0
	return p, end
}

func TestA4_RoundTrip(t *testing.T) {
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 4))
		p, end := randomPane(r)
		b := p.AppendEncode([]byte("before"), end)[len("before"):]
		if got := EncodedHasHistogram(b); got != p.HasHistogram {
			t.Fatalf("seed %d: histogram %v", seed, got)
		}
		back, n, err := DecodePane(append(b, "behind"...), end)
		if err != nil || n != len(b) || !samePane(&p, &back) {
			t.Fatalf("seed %d: decoded %d of %d bytes: %v\n%s%s", seed, n, len(b), err, show(&p), show(&back))
		}
	}
}

// TestA5_CutShort: no proper prefix of a pane is a pane, and a failed decode leaves the window as it was.
func TestA5_CutShort(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 5))
		p, end := randomPane(r)
		b := p.AppendEncode(nil, end)
		w := Window{T: []int64{1}, V: []float64{1}}
		for n := range b {
			var corrupt *CorruptError
			if _, err := AppendDecoded(&w, b[:n:n], end); !errors.As(err, &corrupt) || corrupt.Offset > n {
				t.Fatalf("seed %d: %d of %d bytes: %v", seed, n, len(b), err)
			}
			if len(w.T) != 1 || len(w.V) != 1 || len(w.Cols) != 0 {
				t.Fatalf("seed %d: %d of %d bytes: window %v", seed, n, len(b), w)
			}
		}
	}
}

// TestA5_AllocatesByWhatIsThere: a short input that claims much allocates little.
func TestA5_AllocatesByWhatIsThere(t *testing.T) {
	claim := []byte{version << versionShift, 0, 0x80, 2, 5, 5, 5, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2}
	claim[2], claim[3] = 0x80, 2 // 256 values, of which one is there
	if _, _, err := DecodePane(claim, 0); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Fatal(err)
	}
	allocs := testing.AllocsPerRun(100, func() {
		if _, _, err := DecodePane(claim, 0); err == nil {
			t.Fatal("decoded")
		}
	})
	if allocs > 2 { // the columns and the error
		t.Errorf("%v allocations", allocs)
	}
	claim[2], claim[3] = 0x80, 4 // 512 values, and a sketch with bins for all of them, of which one is there
	claim = append(claim[:19], sketchAccuracy, 0, 0, 0, 0, 0x80, 4, 2, 1)
	if _, _, err := DecodePane(claim, 0); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Fatal(err)
	}
	if allocs := testing.AllocsPerRun(100, func() { _, _, _ = DecodePane(claim, 0) }); allocs > 3 { // the sketch, too
		t.Errorf("%v allocations", allocs)
	}
}

// What the short way says of bytes is what the long one says.
func TestA5_TheShortWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	short := 0
	for range 300_000 {
		end := rng.Int64() - rng.Int64()
		var src []byte
		if rng.IntN(4) > 0 {
			v := float64(rng.Int64N(1<<rng.IntN(50)+1)-rng.Int64N(1<<rng.IntN(50)+1)) / pow10(rng.IntN(maxScale+1))
			p := Pane{T: []int64{end - rng.Int64N(1<<rng.IntN(17)+1)}, V: []float64{v}, HasHistogram: rng.IntN(20) == 0}
			src = p.AppendEncode(nil, end)
		}
		for range rng.IntN(3) {
			src = append(src, byte(rng.Uint32()))
		}
		if len(src) > 0 && rng.IntN(3) == 0 {
			src[rng.IntN(len(src))] = byte(rng.Uint32())
		}
		src = src[:len(src)-min(len(src), rng.IntN(3))]
		at, v, ok := DecodeOne(src, end)
		if !ok {
			continue
		}
		short++
		var want Window
		if _, err := AppendDecoded(&want, src, end); err != nil || EncodedHasHistogram(src) || len(want.T) != 1 || at != want.T[0] ||
			math.Float64bits(v) != math.Float64bits(want.V[0]) {
			t.Fatalf("%x: %d, %g; want %v (%v)", src, at, v, want, err)
		}
	}
	if short < 100_000 {
		t.Errorf("only %d went the short way", short)
	}
}

func FuzzDecodePane(f *testing.F) {
	for seed := range uint64(60) {
		p, end := randomPane(rand.New(rand.NewPCG(seed, 6)))
		f.Add(p.AppendEncode(nil, end), end)
	}
	f.Fuzz(func(t *testing.T, src []byte, end int64) {
		p, n, err := DecodePane(src, end)
		if err != nil {
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) || corrupt.Offset < 0 || corrupt.Offset > len(src) || n != 0 {
				t.Fatalf("%d, %v", n, err)
			}
			return
		}
		if n < 1 || n > len(src) || len(p.T) > MaxSamples || len(p.T) != len(p.V) {
			t.Fatalf("%d of %d bytes: %s", n, len(src), show(&p))
		}
		for i := 1; i < len(p.T); i++ {
			if p.T[i] <= p.T[i-1] {
				t.Fatalf("A1: %v", p.T)
			}
		}
		b := p.AppendEncode(nil, end)
		back, m, err := DecodePane(b, end)
		if err != nil || m != len(b) || !samePane(&p, &back) {
			t.Fatalf("A4: %x decoded to\n%sencoded to %x, that to\n%s%v", src[:n], show(&p), b, show(&back), err)
		}
		var eval Evaluator
		w := Window{}
		w.Append(&p, end)
		for f := Func(1); int(f) < numFuncs; f++ {
			if _, _, err := eval.Eval(f, &w, end-1000, end, 0.5); err != nil && err != ErrNeedsSamples {
				t.Fatal(err)
			}
		}
	})
}
