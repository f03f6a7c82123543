package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// B04: the ballast is let go by a start that finds no space. The service then answers queries and refuses writes; when there is space
// it takes them again and has its ballast back, without anybody's help.
func TestCase_B04_Ballast(t *testing.T) {
	s := setup{dir: t.TempDir(), config: panesOfAMinute, flags: []string{"--storage.ballast-bytes=9MiB"}}
	file := filepath.Join(s.dir, "data", ballastName)
	there := func() bool {
		st, err := os.Stat(file)
		return err == nil && st.Size() == 9<<20
	}
	v := startService(t, s)
	v.send(sent{`m{i="a"}`, 5000, 1})
	v.barrier(60_000)
	v.eventually("the ballast is made", there)
	v.mustStop()

	var roomy atomic.Bool // how much there is beside the ballast
	s.around.freeBytes = func(string) (uint64, error) {
		switch {
		case roomy.Load():
			return 10 << 30, nil
		case there():
			return 1000, nil
		default:
			return 9<<20 + 1000, nil
		}
	}
	v, err := openService(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if there() {
		t.Error("the ballast is still there")
	}
	v.eventually("the state is declared", func() bool {
		code, body := v.get("/-/ready")
		return code == 503 && strings.Contains(body, "disk is below its reserve") && !strings.Contains(body, "replaying")
	})
	v.want(`count_over_time(m[1m])`, 60_000, map[string]float64{`{i="a"}`: 1})
	roomy.Store(true)
	v.eventually("it is ready again", func() bool { code, _ := v.get("/-/ready"); return code == 200 })
	v.send(sent{`m{i="a"}`, 65_000, 1})
	v.barrier(120_000)
	v.want(`count_over_time(m[2m])`, 120_000, map[string]float64{`{i="a"}`: 2})
	v.eventually("the ballast is back", there)
	v.mustStop()

	// Without a ballast such a start is refused.
	roomy.Store(false)
	s.flags = []string{"--storage.ballast-bytes=0"}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	s.around.freeBytes = func(string) (uint64, error) { return 1000, nil }
	if _, err := openService(t, s); err == nil || !strings.Contains(err.Error(), "1000 bytes are free") {
		t.Errorf("got %v", err)
	}
}
