package log

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
)

// VerifyReport says what Verify has read.
type VerifyReport struct {
	Floor, Head         Seq
	Events              uint64
	EventBytes          uint64 // encoded, before compression
	Writes              uint64
	Samples             uint64
	Series              uint64 // defined
	FirstTime, LastTime int64  // log time in ms; 0 if there are no events
}

// verifyStep is how many events lie between two calls of progress.
const verifyStep = 1024

// Verify reads the whole log in dir and checks everything that can be checked: the store's blocks, crc, sequence,
// predecessor hash and decoding of each event, the content hash of each write, log time, and that each series is defined
// once, before or with its first use, like in the dictionary. It changes nothing. The error names the first damage found;
// the report says how far it came. progress may be nil.
func Verify(dir string, opts Options, progress func(Seq)) (VerifyReport, error) {
	l, err := OpenReadOnly(dir, opts)
	if err != nil {
		return VerifyReport{}, err
	}
	report, err := l.verify(progress)
	return report, errors.Join(err, l.Close())
}

func (l *Log) verify(progress func(Seq)) (VerifyReport, error) {
	v := verifier{lookup: func(ref SeriesRef) (labels.Labels, bool, error) {
		if ref >= l.dict.fresh.next {
			return labels.EmptyLabels(), false, nil
		}
		return l.dict.Labels(ref)
	}}
	v.report.Floor, v.report.Head = l.Floor(), l.Head()
	v.truncated = v.report.Floor > 1
	err := v.run(l, progress)
	return v.report, err
}

// verifier checks events one after the other.
type verifier struct {
	report    VerifyReport
	defined   []uint64 // a bit per reference
	truncated bool     // a series may have been defined before the first event
	// lookup finds a series in the dictionary; nil: there is none to compare with.
	lookup func(SeriesRef) (labels.Labels, bool, error)
}

func (v *verifier) run(l *Log, progress func(Seq)) error {
	r := l.NewReader(0)
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = v.event(e)
		}
		if err != nil {
			return err
		}
		v.report.EventBytes += uint64(r.size)
		if progress != nil && (e.Seq%verifyStep == 0 || e.Seq == v.report.Head) {
			progress(e.Seq)
		}
	}
	return v.dictionary(l)
}

func (v *verifier) event(e *Event) error {
	if v.report.Events > 0 && e.LogTime < v.report.LastTime {
		return corrupt(e.Seq, "log time %d is before that of its predecessor, %d", e.LogTime, v.report.LastTime)
	}
	if v.report.Events == 0 {
		v.report.FirstTime = e.LogTime
	}
	v.report.Events++
	v.report.LastTime = e.LogTime
	w, ok := e.Body.(*Write)
	if !ok {
		return nil
	}
	v.report.Writes++
	v.report.Samples += uint64(len(w.Times))
	if want := contentHash(w); w.Hash != want {
		return corrupt(e.Seq, "content hash is %x, not %x", w.Hash, want)
	}
	return v.series(e.Seq, w)
}

func (v *verifier) series(seq Seq, w *Write) error {
	for _, def := range w.Defs {
		if v.has(def.Ref) {
			return corrupt(seq, "series %d is defined again", def.Ref)
		}
		if err := v.definition(seq, def); err != nil {
			return err
		}
		v.define(def.Ref)
		v.report.Series++
	}
	if v.truncated {
		return nil
	}
	for _, ref := range w.Refs {
		if !v.has(ref) {
			return corrupt(seq, "series %d is used before it is defined", ref)
		}
	}
	return nil
}

// definition compares a definition with the dictionary.
func (v *verifier) definition(seq Seq, def SeriesDef) error {
	if v.lookup == nil {
		return nil
	}
	ls, ok, err := v.lookup(def.Ref)
	switch {
	case err != nil:
		return &CorruptionError{Seq: seq, Reason: fmt.Sprintf("dictionary entry of series %d", def.Ref), Err: err}
	case !ok:
		return corrupt(seq, "series %d is not in the dictionary", def.Ref)
	case !labels.Equal(ls, def.Labels):
		return corrupt(seq, "series %d is %s in the dictionary, not %s", def.Ref, ls, def.Labels)
	}
	return nil
}

func (v *verifier) define(ref SeriesRef) {
	for uint64(len(v.defined)) <= uint64(ref)/64 {
		v.defined = append(v.defined, 0)
	}
	v.defined[ref/64] |= 1 << (ref % 64)
}

func (v *verifier) has(ref SeriesRef) bool {
	return uint64(ref)/64 < uint64(len(v.defined)) && v.defined[ref/64]>>(ref%64)&1 == 1
}

// dictionary checks that both directions of the dictionary agree, and that it holds nothing that no event defined.
func (v *verifier) dictionary(l *Log) error {
	var entries, hashes uint64
	d := l.dict
	var inner error
	err := d.All(func(ref SeriesRef, ls labels.Labels) bool {
		entries++
		encoded := appendLabels(nil, ls)
		found, err := d.find(d.canonicalHash(encoded), encoded)
		switch {
		case err != nil:
			inner = err
		case found != ref:
			inner = corrupt(0, "the hash of series %d leads to %d", ref, found)
		case !v.truncated && !v.has(ref):
			inner = corrupt(0, "series %d of the dictionary was defined by no event", ref)
		}
		return inner == nil
	})
	if err = errors.Join(err, inner); err != nil {
		return err
	}
	err = l.store.iterate([]byte{prefixHash}, []byte{prefixHash + 1}, func(_, _ []byte) (bool, error) {
		hashes++
		return true, nil
	}, nil)
	if err == nil && hashes != entries {
		err = corrupt(0, "dictionary has %d hashes for %d series", hashes, entries)
	}
	return err
}

// Stat describes a log.
type Stat struct {
	Dir                 string
	Format              int
	Floor, Head         Seq
	Events              uint64
	FirstTime, LastTime int64 // log time in ms; 0 if there are no events
	FirstWall, LastWall int64 // wall time in ms, likewise
	Series              uint64
	Files               []FileClass // by name of class
	DiskBytes           int64       // sum over Files
}

// FileClass sums up the files of one kind.
type FileClass struct {
	Class string // head, wal, table, manifest, options, marker, other
	Files int
	Bytes int64
}

// Stat reads the ends of the log, counts the series and lists the files. It reads the whole dictionary.
func (l *Log) Stat() (Stat, error) {
	s := Stat{Dir: l.dir, Format: storeFormat, Floor: l.Floor(), Head: l.Head()}
	if s.Head >= s.Floor {
		s.Events = uint64(s.Head - s.Floor + 1)
		first, err := l.NewReader(s.Floor).Next()
		if err != nil {
			return s, err
		}
		last, err := l.NewReader(s.Head).Next()
		if err != nil {
			return s, err
		}
		s.FirstTime, s.FirstWall, s.LastTime, s.LastWall = first.LogTime, first.WallTime, last.LogTime, last.WallTime
	}
	err := l.store.iterate([]byte{prefixSeries}, []byte{prefixSeries + 1}, func(_, _ []byte) (bool, error) {
		s.Series++
		return true, nil
	}, nil)
	if err != nil {
		return s, err
	}
	return s, l.statFiles(&s)
}

func (l *Log) statFiles(s *Stat) error {
	fs := l.opts.FS
	classes := map[string]*FileClass{}
	for _, dir := range []string{l.dir, fs.PathJoin(l.dir, storeDir)} {
		names, err := fs.List(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			info, err := fs.Stat(fs.PathJoin(dir, name))
			if err != nil || info.IsDir() {
				continue // gone since it was listed
			}
			class := classOf(name)
			if classes[class] == nil {
				classes[class] = &FileClass{Class: class}
			}
			classes[class].Files++
			classes[class].Bytes += info.Size()
			s.DiskBytes += info.Size()
		}
	}
	for _, c := range classes {
		s.Files = append(s.Files, *c)
	}
	slices.SortFunc(s.Files, func(a, b FileClass) int { return cmp.Compare(a.Class, b.Class) })
	return nil
}

func classOf(name string) string {
	switch {
	case name == headFile:
		return "head"
	case strings.HasSuffix(name, ".log"):
		return "wal"
	case strings.HasSuffix(name, ".sst"):
		return "table"
	case strings.HasPrefix(name, "MANIFEST-"):
		return "manifest"
	case strings.HasPrefix(name, "OPTIONS-"):
		return "options"
	case strings.HasPrefix(name, "marker."):
		return "marker"
	default:
		return "other"
	}
}
