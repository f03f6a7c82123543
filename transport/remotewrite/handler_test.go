package remotewrite

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/golang/snappy"

	"tidemark/log"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func request(t testing.TB, lines string) []byte {
	t.Helper()
	return snappy.Encode(nil, marshal(t, parseRequest(t, lines)))
}

// The events of a batch that is sent six times have one hash, by which the fold knows them.
func TestCase_A09_OneHash(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m i=a : 1@1000 2@2000 3@3000`)
	for range 6 {
		if a := r.post(body); a.code != http.StatusNoContent {
			t.Fatal(a)
		}
	}
	events := r.writes()
	if len(events) != 6 {
		t.Fatalf("%d events", len(events))
	}
	for _, e := range events {
		if got, want := e.Body.(*log.Write).Hash, events[0].Body.(*log.Write).Hash; got != want {
			t.Errorf("event %d has hash %x, the first %x", e.Seq, got, want)
		}
	}
}

// R8: a failed append leaves nothing behind that would make its repetition a duplicate, of samples or of metadata.
func TestCase_A11_FailedAppendIsRepeatedInFull(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, "__name__=m i=a : 5@1000\nmetadata m counter Help. \"\"")
	r.fail.next = []error{errors.New("no space left on device")}
	if got, want := r.post(body).String(), "503 retry after 5: no space left on device"; got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	if got := r.show(); got != "nothing appended\n" {
		t.Fatal(got)
	}
	if a := r.post(body); a.code != http.StatusNoContent {
		t.Fatal(a)
	}
	want := "#1\n  {__name__=\"m\", i=\"a\"} 5@1000\n  metadata m counter \"Help.\" \"\"\n"
	if got := r.show(); got != want {
		t.Fatalf("got %s, want %s", got, want)
	}
	v := r.values()
	if v["samples_received_total"] != 2 || v["samples_rejected_total{not_logged}"] != 1 || v["samples_logged_total"] != 1 {
		t.Error(v)
	}
}

// Two requests for one series at once: both are acknowledged, and all four samples are there, whichever came first.
func TestCase_A53_ParallelAndReversed(t *testing.T) {
	r := newRig(t, nil)
	bodies := [2][]byte{
		request(t, `__name__=m : 1@10000 1@20000`), request(t, `__name__=m : 1@30000 1@40000`),
	}
	for round := range 100 {
		var wg sync.WaitGroup
		for i := range bodies {
			wg.Go(func() {
				if a := r.post(bodies[(i+round)%2]); a.code != http.StatusNoContent {
					t.Error(a)
				}
			})
		}
		wg.Wait()
		var times []int64
		for _, e := range r.writes() {
			times = append(times, e.Body.(*log.Write).Times...)
		}
		if s := fmt.Sprint(times); s != "[10000 20000 30000 40000]" && s != "[30000 40000 10000 20000]" {
			t.Fatal(s)
		}
	}
	if len(r.labels) != 1 {
		t.Errorf("%d series", len(r.labels))
	}
}

// Every sender writes its own series and one that all write; nothing is lost and nothing is mixed up.
func TestR4_ManySenders(t *testing.T) {
	r := newRig(t, nil)
	const senders, requests = 16, 20
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range requests {
				a := r.post(request(t, fmt.Sprintf("__name__=m sender=s%d : %d@%d\n__name__=all : %d@%d\n__name__=m sender= sender=x : 1@1", s, s, i, s, i)))
				if a.code != http.StatusBadRequest || !strings.Contains(a.body, "2 of 3 samples written, 1 rejected") {
					t.Error(a)
				}
			}
		})
	}
	wg.Wait()
	own := make(map[string]int)
	for _, e := range r.writes() {
		w := e.Body.(*log.Write)
		if len(w.Refs) != 2 || len(w.Times) != 2 || w.Times[0] != w.Times[1] || w.Values[0] != w.Values[1] {
			t.Fatalf("event %d mixes requests: %+v", e.Seq, w)
		}
		for i, ref := range w.Refs {
			ls := r.labels[ref]
			if s := ls.Get("sender"); s != "" && s != fmt.Sprintf("s%d", int(w.Values[i])) {
				t.Errorf("value %v under %v", w.Values[i], ls)
			}
			own[ls.String()]++
		}
	}
	if len(own) != senders+1 || own[`{__name__="all"}`] != senders*requests {
		t.Errorf("%d series, %d events", len(own), own[`{__name__="all"}`])
	}
}

// R8: what replay has seeded is not logged again, in whatever order events and requests come.
func TestR8_Seed(t *testing.T) {
	r := newRig(t, nil)
	r.handler.SeedMetadata(8, []log.Metadata{{Family: "m", Type: "counter", Help: "New."}})
	r.handler.SeedMetadata(7, []log.Metadata{{Family: "m", Type: "counter", Help: "Old."}, {Family: "n", Type: "gauge"}})
	r.post(request(t, "metadata m counter New. \"\"\nmetadata n gauge \"\" \"\""))
	if got := r.show(); got != "nothing appended\n" {
		t.Error(got)
	}
	r.post(request(t, `metadata m counter Old. ""`))
	if got, want := r.show(), "#1\n  metadata m counter \"Old.\" \"\"\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// R5: a sender that goes away while its event is under way changes nothing about the counts.
func TestR5_SenderGoesAway(t *testing.T) {
	r := newRig(t, nil)
	body := request(t, `__name__=m : 1@1000`)
	conn, err := net.Dial("tcp", r.server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	arrived, gone := make(chan struct{}), make(chan struct{})
	r.fail.before = func(ctx context.Context) {
		close(arrived)
		<-gone
		if ctx.Done() != nil {
			t.Error("the append can be abandoned")
		}
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", Path, len(body), body)
	<-arrived
	conn.Close()
	close(gone)
	waitFor(t, func() bool { return r.values()["requests_total{204}"] == 1 })
	if n := len(r.writes()); n != 1 {
		t.Errorf("%d events", n)
	}
}
