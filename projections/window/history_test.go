package window_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

const (
	panesOnly = `
materializations:
  - {name: m_sum, expr: 'sum by (i) (sum_over_time(m[30s]))', every: 15s}
`
	twoRules = oneRule + "  - {name: m_max, expr: 'max by (i) (sum_over_time(m[45s]))', every: 15s, layout: full_window}\n"
)

// TestW6_HistoryOfANewRecord holds that a record which begins over panes that were published before is recorded from the first of
// them on, and that the steps which the last of them reach are, too, when they are published.
func TestW6_HistoryOfANewRecord(t *testing.T) {
	r := newRig(t)
	defer func() { r.stop() }()
	r.configure(panesOnly)
	r.write(one("m", "a", 5000, 1, 20000, 2, 35000, 3, 50000, 4), one("m", "b", 5000, 10, 53000, 5))
	r.barrier(60_000)
	r.configure(oneRule)
	r.expect(over("m_sum", 15_000, 60_000, 15_000), 0, 4)
	r.settle()
	r.expect(over("m_sum", 15_000, 60_000, 15_000), 4, 0)

	// The bucket at 60 s has changed before anyone followed it, and takes part in a step that was published only now.
	r.barrier(75_000)
	r.settle()
	r.expect(over("m_sum", 15_000, 75_000, 15_000), 5, 0)

	// What is recorded once is not recorded again: nor after a restart, nor when a second record over the same stream begins.
	recorded := r.recorder.Recorded()
	r.stop()
	r.start()
	r.setPlan(r.plan)
	r.settle()
	if n := r.recorder.Recorded(); n != 0 {
		t.Errorf("%d of %d steps recorded again after a restart", n, recorded)
	}
	r.configure(twoRules)
	r.barrier(120_000)
	r.settle()
	if n := r.recorder.Recorded(); n != 6 {
		t.Errorf("%d steps recorded of the second record, want 6", n)
	}
	r.expect(over("m_max", 15_000, 90_000, 15_000), 6, 0)
	r.expect(over("m_sum", 15_000, 75_000, 15_000), 5, 0)
}

// TestW6_Interrupted holds that a crash at any time on the way costs time and nothing else.
func TestW6_Interrupted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, percent := range []int{0, 50, 100} {
		r := newRig(t)
		r.configure(panesOnly)
		var points []float64
		for i := range 40 {
			points = append(points, float64(5000+15_000*i), float64(rng.IntN(100)))
		}
		r.write(one("m", "a", points...))
		r.barrier(600_000)
		if err := r.store.Flush(r.ctx); err != nil {
			t.Fatal(err)
		}
		r.configure(oneRule)
		r.settle()
		if err := r.store.Flush(r.ctx); err != nil {
			t.Fatal(err)
		}
		r.crash(percent, rng)
		r.setPlan(r.plan)
		r.write(one("m", "a", 590_500, 1000)) // within a published bucket
		r.crash(percent, rng)
		r.setPlan(r.plan)
		r.settle()
		r.expect(over("m_sum", 15_000, 600_000, 15_000), 40, 0)
		r.stop()
	}
}

// TestW6_RemovedAndBack holds that a record which was removed and comes back takes nothing of what happened meanwhile as recorded,
// whether its stream was followed for another record or for none.
func TestW6_RemovedAndBack(t *testing.T) {
	for name, meanwhile := range map[string]string{"alone": panesOnly, "beside another": oneRule} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			defer r.stop()
			r.configure(twoRules)
			r.write(one("m", "a", 5000, 1, 20000, 2))
			r.barrier(60_000)
			r.settle()
			r.configure(meanwhile)
			r.round(time.Second)
			r.write(one("m", "a", 65_000, 7, 4_000, 100))
			r.barrier(120_000)
			r.settle()
			r.configure(twoRules)
			r.settle()
			r.expect(over("m_max", 15_000, 105_000, 15_000), 7, 0)
		})
	}
}
