package main

import (
	"testing"
	"time"
)

func TestCampaign_Model(t *testing.T) {
	plans, err := campaignPlans()
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(20) {
		began := time.Now()
		ref, p, err := record(newScript(seed, 60), plans)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		t.Logf("seed %d: %d events, %+v, %+v, %s", seed, len(ref.tolds), p.m.ops, p.asked, time.Since(began))
	}
}
