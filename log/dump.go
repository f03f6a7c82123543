package log

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
)

type jsonEvent struct {
	Seq        Seq             `json:"seq"`
	ID         string          `json:"id"`
	Kind       string          `json:"kind"`
	LogTime    int64           `json:"log_time_ms"`
	WallTime   int64           `json:"wall_time_ms"`
	Prev       string          `json:"prev"`
	Reason     string          `json:"reason,omitempty"`
	Time       *int64          `json:"time_ms,omitempty"`
	Experiment *string         `json:"experiment,omitempty"`
	Plan       json.RawMessage `json:"plan,omitempty"`
	Expired    *jsonExpired    `json:"expired,omitempty"`
	Heal       *jsonHeal       `json:"heal,omitempty"`
	Compacted  *jsonCompacted  `json:"compacted,omitempty"`
	Retired    *jsonRetired    `json:"retired,omitempty"`
	Task       *jsonTask       `json:"task,omitempty"`
	Hash       string          `json:"hash,omitempty"`
	Defs       []jsonDef       `json:"defs,omitempty"`
	Series     []jsonSeries    `json:"series,omitempty"`
	Exemplars  []jsonExemplar  `json:"exemplars,omitempty"`
	Histograms []jsonHistogram `json:"histograms,omitempty"`
	Metadata   []jsonMetadata  `json:"metadata,omitempty"`
}

type jsonHeal struct {
	Through Seq `json:"through_seq"`
	From    Seq `json:"from_seq"`
}

type jsonExpired struct {
	Stream  string `json:"stream"`
	Origin  int64  `json:"origin_ms"`
	Width   int64  `json:"width_ms"`
	Through int64  `json:"through_ms"`
}

type jsonCompacted struct {
	Through Seq    `json:"through"`
	Pieces  uint64 `json:"pieces"`
	Read    uint64 `json:"read_bytes"`
	Written uint64 `json:"written_bytes"`
}

type jsonRetired struct {
	AtVersion     Seq               `json:"at_version"`
	LastWrite     int64             `json:"last_write_ms"`
	ClosedThrough *int64            `json:"closed_through_ms"`
	Parts         []jsonRetiredPart `json:"parts"`
	Later         []jsonLaterPart   `json:"later,omitempty"`
}

type jsonLaterPart struct {
	Generation Seq    `json:"planned_at"`
	Shard      uint32 `json:"shard"`
	Buckets    uint64 `json:"buckets"`
}

type jsonRetiredPart struct {
	Shard   uint32 `json:"shard"`
	Series  uint64 `json:"series"`
	Samples uint64 `json:"samples"`
	Buckets uint64 `json:"buckets"`
}

type jsonTask struct {
	ID        string `json:"id"`
	Kind      string `json:"kind,omitempty"`
	Target    string `json:"target,omitempty"`
	Options   string `json:"options,omitempty"`
	Manual    bool   `json:"manual,omitempty"`
	Failed    bool   `json:"failed,omitempty"`
	Class     string `json:"class,omitempty"`
	Message   string `json:"message,omitempty"`
	Unchanged bool   `json:"unchanged,omitempty"`
	Version   Seq    `json:"version,omitempty"`
}

// master fills in what an event of the control plane says.
func (j *jsonEvent) master(b Body) {
	switch b := b.(type) {
	case *Compacted:
		j.Experiment = &b.Experiment
		j.Compacted = &jsonCompacted{b.Through, b.Pieces, b.Read, b.Written}
	case *ExperimentRetired:
		j.Experiment = &b.Experiment
		j.Retired = &jsonRetired{AtVersion: b.AtVersion, LastWrite: b.LastWrite}
		if b.ClosedThrough != math.MinInt64 {
			j.Retired.ClosedThrough = &b.ClosedThrough
		}
		for _, p := range b.Parts {
			j.Retired.Parts = append(j.Retired.Parts, jsonRetiredPart(p))
		}
		for _, l := range b.Later {
			j.Retired.Later = append(j.Retired.Later, jsonLaterPart(l))
		}
	case *TaskQueued:
		j.Task = &jsonTask{ID: b.ID.String(), Kind: b.Task.String(), Target: b.Target, Options: b.Options, Manual: b.Manual}
	case *TaskStarted:
		j.Task = &jsonTask{ID: b.ID.String()}
	case *TaskFinished:
		j.Task = &jsonTask{ID: b.ID.String(), Failed: b.Failed, Class: b.Class, Message: b.Message, Unchanged: b.Unchanged, Version: b.Version}
	}
}

type jsonDef struct {
	Ref    SeriesRef     `json:"ref"`
	Labels labels.Labels `json:"labels"`
}

type jsonSeries struct {
	Ref     SeriesRef      `json:"ref"`
	Labels  *labels.Labels `json:"labels,omitempty"`
	Samples []jsonSample   `json:"samples"`
}

// jsonSample is [time in ms, value] or [time in ms, value, start time in ms].
type jsonSample struct {
	time, start int64
	value       float64
}

// MarshalJSON implements json.Marshaler.
func (s jsonSample) MarshalJSON() ([]byte, error) {
	b := strconv.AppendInt([]byte{'['}, s.time, 10)
	b = appendJSONFloat(append(b, ','), s.value)
	if s.start != 0 {
		b = strconv.AppendInt(append(b, ','), s.start, 10)
	}
	return append(b, ']'), nil
}

// appendJSONFloat writes what JSON cannot hold as a string; a NaN with its bits, as the stale marker is one.
func appendJSONFloat(b []byte, v float64) []byte {
	switch {
	case math.IsNaN(v):
		return fmt.Appendf(b, `"NaN(0x%016x)"`, math.Float64bits(v))
	case math.IsInf(v, 0):
		return fmt.Appendf(b, `"%+g"`, v)
	default:
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	}
}

type jsonExemplar struct {
	Ref    SeriesRef     `json:"ref"`
	Sample jsonSample    `json:"sample"`
	Labels labels.Labels `json:"labels"`
}

type jsonHistogram struct {
	Ref   SeriesRef `json:"ref"`
	Time  int64     `json:"time_ms"`
	Proto []byte    `json:"proto"`
}

type jsonMetadata struct {
	Family string `json:"family"`
	Type   string `json:"type"`
	Help   string `json:"help"`
	Unit   string `json:"unit"`
}

// DumpJSON writes an event as one line of JSON. lookup gives the labels of a series that the event does not define itself;
// it may be nil.
func DumpJSON(w io.Writer, e *Event, lookup func(SeriesRef) (labels.Labels, bool)) error {
	j := jsonEvent{
		Seq: e.Seq, ID: e.ID.String(), Kind: e.Body.Kind().String(), LogTime: e.LogTime, WallTime: e.WallTime,
		Prev: hex.EncodeToString(e.Prev[:]),
	}
	switch b := e.Body.(type) {
	case *Start:
		j.Reason = "process"
		if b.Reason == StartResume {
			j.Reason = "resume"
		}
	case *Watermark:
		j.Time = &b.Time
		if b.Scoped {
			j.Experiment = &b.Experiment
		}
	case *Plan:
		j.Plan = json.RawMessage(b.Spec)
		if !json.Valid(b.Spec) {
			j.Plan, _ = json.Marshal(string(b.Spec))
		}
	case *Expired:
		j.Expired = &jsonExpired{Stream: fmt.Sprintf("%016x", b.Stream), Origin: b.Origin, Width: b.Width, Through: b.Through}
	case *Heal:
		j.Heal = &jsonHeal{Through: b.Through, From: b.From}
	case *Write:
		j.write(b, lookup)
	default:
		j.master(b)
	}
	line, err := json.Marshal(&j)
	if err != nil {
		return fmt.Errorf("dump sequence %d: %w", e.Seq, err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

func (j *jsonEvent) write(w *Write, lookup func(SeriesRef) (labels.Labels, bool)) {
	j.Hash = hex.EncodeToString(w.Hash[:])
	own := make(map[SeriesRef]labels.Labels, len(w.Defs))
	for _, d := range w.Defs {
		own[d.Ref] = d.Labels
		j.Defs = append(j.Defs, jsonDef(d))
	}
	var begin uint32
	for i, end := range w.Ends {
		s := jsonSeries{Ref: w.Refs[i]}
		if ls, ok := own[s.Ref]; ok {
			s.Labels = &ls
		} else if lookup != nil {
			if ls, ok := lookup(s.Ref); ok {
				s.Labels = &ls
			}
		}
		for ; begin < end; begin++ {
			sample := jsonSample{time: w.Times[begin], value: w.Values[begin]}
			if w.Starts != nil {
				sample.start = w.Starts[begin]
			}
			s.Samples = append(s.Samples, sample)
		}
		j.Series = append(j.Series, s)
	}
	for _, e := range w.Exemplars {
		j.Exemplars = append(j.Exemplars, jsonExemplar{Ref: e.Ref, Sample: jsonSample{time: e.Time, value: e.Value}, Labels: e.Labels})
	}
	for _, h := range w.Histograms {
		j.Histograms = append(j.Histograms, jsonHistogram(h))
	}
	for _, m := range w.Metadata {
		j.Metadata = append(j.Metadata, jsonMetadata(m))
	}
}
