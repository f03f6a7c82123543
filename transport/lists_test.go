package transport

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"tidemark/log"
)

func list(entries ...string) string {
	return `{"status":"success","data":[` + strings.Join(entries, ",") + `]}`
}

func TestCase_D24_SeriesRules(t *testing.T) {
	w := newWorld(t, Options{})
	a, b := `{"__name__":"m","i":"a"}`, `{"__name__":"m","i":"b"}`
	w.wantError(w.get("/api/v1/series"), 400, "bad_data", "no match[] parameter provided")
	w.want(w.get("/api/v1/series", "match[]", "m", "match[]", `{i="a"}`), list(a, b))
	w.wantError(w.get("/api/v1/series", "match[]", "{}"), 400, "bad_data", `invalid parameter \"match[]\"`)
	w.wantError(w.get("/api/v1/series", "match[]", `{i=~".*"}`), 400, "bad_data", "at least one non-empty matcher")
	w.wantError(w.get("/api/v1/series", "match[]", "m", "match[]", `{i=""}`), 400, "bad_data", "at least one non-empty matcher")
	w.want(w.get("/api/v1/series", "match[]", `{i!=""}`), list(a, b))
	w.want(w.get("/api/v1/series", "match[]", "odd"), list(`{"__name__":"odd","html":"<b>&\"\\"}`))
	for _, span := range [][]string{{"start", "0", "end", "1"}, {"start", "-292273086-05-16T16:47:06Z", "end", "292277025-08-18T07:12:54.999999999Z"}} {
		w.want(w.get("/api/v1/series", append(span, "match[]", "m")...), list(a, b))
	}
	w.want(w.get("/api/v1/series", "match[]", "m", "start", "1", "end", "0"), list())
	w.wantError(w.get("/api/v1/series", "match[]", "m", "start", "x"), 400, "bad_data", "start")
	w.want(w.get("/api/v1/series", "match[]", "m", "limit", "2"), list(a, b))
	w.want(w.get("/api/v1/series", "match[]", "m", "limit", "1"), `{"status":"success","data":[`+a+`],"warnings":["results truncated due to limit"]}`)
	w.wantError(w.get("/api/v1/series", "match[]", "m", "limit", "-1"), 400, "bad_data", "limit must be non-negative")
}

func TestLabels(t *testing.T) {
	w := newWorld(t, Options{})
	w.want(w.get("/api/v1/labels"), list(`"__name__"`, `"html"`, `"i"`))
	w.want(w.post("/api/v1/labels", "match[]", "m"), list(`"__name__"`, `"i"`))
	w.want(w.get("/api/v1/labels?limit=1"), `{"status":"success","data":["__name__"],"warnings":["results truncated due to limit"]}`)
	w.want(w.get("/api/v1/label/i/values"), list(`"a"`, `"b"`))
	w.want(w.get("/api/v1/label/i/values", "match[]", `m{i="b"}`), list(`"b"`))
	w.want(w.get("/api/v1/label/html/values"), list(`"\u003cb\u003e\u0026\"\\"`))
	w.want(w.get("/api/v1/label/U___i_/values"), list())
	w.wantError(w.get("/api/v1/label/%FF/values"), 400, "bad_data", "invalid label name")
	w.want(w.get("/api/v1/label/a%2Fb/values"), list())
}

type metadataRows []log.Metadata

func (m metadataRows) Metadata(_ context.Context, family string) ([]log.Metadata, error) {
	var out []log.Metadata
	for _, row := range m {
		if family == "" || row.Family == family {
			out = append(out, row)
		}
	}
	return out, nil
}

func TestMetadata(t *testing.T) {
	w := newWorld(t, Options{Metadata: metadataRows{
		{Family: "a", Type: "counter", Help: "<help>", Unit: "s"}, {Family: "a", Type: "gauge"}, {Family: "b", Type: "gauge", Help: "h"},
	}})
	a1, a2 := `{"type":"counter","help":"\u003chelp\u003e","unit":"s"}`, `{"type":"gauge","help":"","unit":""}`
	all := `{"status":"success","data":{"a":[` + a1 + `,` + a2 + `],"b":[{"type":"gauge","help":"h","unit":""}]}}`
	w.want(w.get("/api/v1/metadata"), all)
	w.want(w.get("/api/v1/metadata?limit=2"), all)
	w.want(w.get("/api/v1/metadata?limit=1"), `{"status":"success","data":{"a":[`+a1+`,`+a2+`]}}`)
	w.want(w.get("/api/v1/metadata?metric=a&limit_per_metric=1"), `{"status":"success","data":{"a":[`+a1+`]}}`)
	w.want(w.get("/api/v1/metadata?metric=nope"), `{"status":"success","data":{}}`)
	w.wantError(w.get("/api/v1/metadata?limit=x"), 400, "bad_data", "limit must be a number")
	w.wantError(w.do(http.MethodPost, "/api/v1/metadata", ""), 405, "bad_data", "method")
}

// Lists say what may be missing: series that have ended and were not looked at, and what of recorded series could not be told.
func TestListsSayWhatMayBeMissing(t *testing.T) {
	w := newWorld(t, Options{Recorded: recordedList{}})
	const unseen = `"some series that have ended were not looked at, there are too many: name more of what is asked for"`
	for _, c := range []struct{ path, list, cutShort string }{
		{"/api/v1/series?match[]=odd", `[{"__name__":"odd","html":"<b>&\"\\"},{"__name__":"rule","team":"x"}]`, ""},
		{"/api/v1/labels?match[]=odd", `["__name__","html","team"]`, ""},
		{"/api/v1/label/__name__/values?match[]=odd", `["odd","rule"]`, ""},
		{"/api/v1/label/team/values", `["x"]`, ""},
		{"/api/v1/label/__name__/values?match[]=odd&limit=1", `["odd"]`, `,"results truncated due to limit"`},
	} {
		for _, cut := range []bool{false, true} {
			w.cut.Store(cut)
			want := `"rule: why"` + c.cutShort
			if cut {
				want = unseen + "," + want
			}
			w.want(w.get(c.path), `{"status":"success","data":`+c.list+`,"warnings":[`+want+`]}`)
		}
	}
}

// recordedList has one recorded series.
type recordedList struct{}

func (recordedList) ReadsOwn(string) bool { return false }

func (recordedList) RecordedSeries(context.Context, [][]*labels.Matcher, int64, int64, bool) ([]labels.Labels, []string, error) {
	return []labels.Labels{labels.FromStrings("__name__", "rule", "team", "x")}, []string{"rule: why"}, nil
}
