# Every target works on a fresh machine with Go alone. What is slow says so.
GO        ?= go
BIN       := .bin
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null)
REVISION  ?= $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS   := -X main.version=$(VERSION) -X main.revision=$(REVISION)
# A number of executions, not a time: a deadline that passes while an input is being minimised is reported as a failure.
FUZZTIME  ?= 20000x
# What the race detector looks at: packages with goroutines, and of the command what runs in its own process.
RACE      := ./log ./projections ./projections/bucket ./projections/pane ./projections/query ./projections/window ./transport/...
RACE_CMD  := TestDifferential|TestCase_C|TestG[0-9]

.PHONY: build release test race lint fuzz-smoke campaign campaign-planted differential requests hostile fuzz-scan vuln soak bench bench-peers demo clean

build:
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/tidemark ./cmd/tidemark

# What is handed on, and what is looked up in the database of vulnerabilities, is linked with the Go that go.mod names if the installed one
# is older, because the standard library is a part of it. The go command fetches it from the module proxy; where that cannot be had, the
# installed Go does it, and says so.
MENDED_GO := if ! GOTOOLCHAIN=auto $(GO) version >/dev/null 2>&1; then \
	    echo "NOT MENDED: $$(sed -n 's/^toolchain //p' go.mod) cannot be had; this has the standard library of $$(GOTOOLCHAIN=local $(GO) env GOVERSION)" >&2; \
	    export GOTOOLCHAIN=local; \
	  else export GOTOOLCHAIN=auto; fi

# Static binaries with their checksums, in .bin/release. Nothing of the machine that builds them is in them.
RELEASES  ?= linux/amd64 linux/arm64
release:
	@mkdir -p $(BIN)/release
	@set -e; $(MENDED_GO); $(GO) version; for p in $(RELEASES); do os=$${p%/*}; arch=$${p#*/}; out=tidemark-$$os-$$arch; echo "$$out"; \
	  CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch GOAMD64=v1 $(GO) build -trimpath -ldflags '-s -w $(LDFLAGS)' -o $(BIN)/release/$$out ./cmd/tidemark; \
	done
	cd $(BIN)/release && sha256sum tidemark-* > SHA256SUMS && cat SHA256SUMS
	cp cmd/tidemark/assets/Containerfile cmd/tidemark/assets/tidemark.service $(BIN)/release

# All tests. Those that need other programs (Prometheus, the node exporter, Chromium) say loudly when they are left out;
# REQUIRE_PEERS=1 makes that a failure.
test:
	$(GO) test -timeout 30m ./...
	@for p in prometheus prometheus-node-exporter chromium; do command -v $$p >/dev/null || echo "LEFT OUT: tests with $$p, because it is not installed (apt-get install $$p)"; done

race:
	$(GO) test -race -short -timeout 20m $(RACE)
	$(GO) test -race -short -timeout 20m -run '$(RACE_CMD)' ./cmd/tidemark

lint:
	@test -z "$$(gofmt -l cmd log master projections transport 2>/dev/null)" || { gofmt -d cmd log projections transport | head -50; exit 1; }
	$(GO) vet ./...
	cd .tools && $(GO) build -o ../$(BIN)/staticcheck honnef.co/go/tools/cmd/staticcheck
	$(BIN)/staticcheck ./...

# Every fuzz target of the tree, each for FUZZTIME executions.
fuzz-smoke:
	@set -e; grep -rlE '^func Fuzz[A-Z]' --include='*_test.go' . | sort | while read -r f; do \
	  grep -oE '^func Fuzz[A-Za-z0-9_]+' "$$f" | sed 's/^func //' | while read -r t; do \
	    echo "== $$t ($$(dirname $$f))"; \
	    $(GO) test -run '^$$' -fuzz "^$$t\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 100x "$$(dirname $$f)"; \
	  done; \
	done

# The campaign (see cmd/tidemark/campaign_test.go): long, goes on where testdata/campaign.jsonl says that it stopped, and appends to it.
# MODE is one of crash, fault, damage, late, model, kill; empty: all of them but kill, which runs real processes.
SEEDS     ?= 1-1000000
DURATION  ?= 10m
MODE      ?=
campaign:
	$(GO) test -c -o $(BIN)/campaign.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') CAMPAIGN_MODE=$(MODE) CAMPAIGN_SEEDS=$(SEEDS) CAMPAIGN_DURATION=$(DURATION) \
	  ../../$(BIN)/campaign.test -test.run '^TestCampaign_Long$$' -test.v -test.timeout 0

# The differential campaign: at least PAIRS random queries over random data against Prometheus' engine, by all routes, from SEED on. It
# appends a line to the same ledger.
PAIRS     ?= 20000
SEED      ?= 1000
differential:
	$(GO) test -c -o $(BIN)/differential.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') DIFFERENTIAL_PAIRS=$(PAIRS) DIFFERENTIAL_SEED=$(SEED) \
	  ../../$(BIN)/differential.test -test.run '^TestDifferential_Long$$' -test.v -test.timeout 0

# Structure-aware random requests through the whole handler: COUNT of them from SEED on, or as many as DURATION lets it. It appends to the
# same ledger.
COUNT     ?= 20000000
requests:
	$(GO) test -c -o $(BIN)/requests.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') REQUESTS_COUNT=$(COUNT) REQUESTS_SEED=$(SEED) REQUESTS_DURATION=$(DURATION) \
	  ../../$(BIN)/requests.test -test.run '^TestRandomRequests_Long$$' -test.v -test.timeout 0

# The scanners of Remote Write beside the generated decoders of Prometheus: COUNT executions over both targets, or as many as DURATION lets it.
# Go's fuzzer with coverage of the scanners and the decoders alone, since what it does for each execution grows with all that is instrumented;
# TAPES=1: a loop over random inputs from SEED on. It appends a line for each target to the same ledger. Inputs that it learned are kept in
# .bin/fuzz, and one that fails in transport/remotewrite/testdata/fuzz.
TAPES     ?=
FUZZ_SEEN := -gcflags=tidemark/transport/remotewrite=-d=libfuzzer -gcflags=github.com/prometheus/prometheus/prompb/...=-d=libfuzzer
fuzz-scan:
	$(GO) test -c $(if $(TAPES),,$(FUZZ_SEEN)) -o $(BIN)/fuzz-scan$(TAPES).test ./transport/remotewrite
	$(GO) test -c -o $(BIN)/fuzz-ledger.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') FUZZ_COUNT=$(COUNT) FUZZ_SEED=$(SEED) FUZZ_DURATION=$(DURATION) \
	  FUZZ_TAPES=$(TAPES) FUZZ_BINARY=$(CURDIR)/$(BIN)/fuzz-scan$(TAPES).test FUZZ_CACHE=$(CURDIR)/$(BIN)/fuzz \
	  ../../$(BIN)/fuzz-ledger.test -test.run '^TestFuzz_Long$$' -test.v -test.timeout 0

# Hostile connections over loopback beside a good writer: CONNECTIONS of them, or as many as DURATION lets it. It appends to the same ledger.
CONNECTIONS ?= 100000
hostile:
	$(GO) test -c -o $(BIN)/hostile.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') HOSTILE_COUNT=$(CONNECTIONS) HOSTILE_SEED=$(SEED) HOSTILE_DURATION=$(DURATION) \
	  ../../$(BIN)/hostile.test -test.run '^TestHostile_Long$$' -test.v -test.timeout 0

# Known vulnerabilities of what is linked in. Their database is a Go module too, so that the module proxy is all that this needs. What it
# finds in the standard library is mended by a newer Go: name it in go.mod.
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.9.0
vuln:
	@$(MENDED_GO); $(GO) version; $(MAKE) --no-print-directory build
	cd .tools && $(GO) run ./vulndb "$$($(GO) mod download -json golang.org/x/vulndb@latest | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p')" ../$(BIN)/vulndb
	$(GO) run $(GOVULNCHECK) -db file://$(CURDIR)/$(BIN)/vulndb -mode binary $(BIN)/tidemark

# Plants bugs, one by one, and holds that the campaign finds each within five minutes. PLANTED names some; "three": those of the day.
PLANTED   ?=
campaign-planted:
	$(GO) test -tags planted -c -o $(BIN)/planted.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') PLANTED='$(PLANTED)' ../../$(BIN)/planted.test -test.run '^TestPlanted$$' -test.v -test.timeout 0

# A real process under load that is killed, stalled and has its clock stepped, for DURATION; its memory and its disk must stay flat.
soak:
	$(GO) test -c -o $(BIN)/soak.test ./cmd/tidemark
	cd cmd/tidemark && CAMPAIGN_COMMIT=$(shell git describe --always --dirty --abbrev=12 --exclude '*') SOAK_DURATION=$(DURATION) $(CURDIR)/$(BIN)/soak.test -test.run '^TestSoak$$' -test.v -test.timeout 0

bench: build
	$(BIN)/tidemark bench all

# Beside Prometheus and VictoriaMetrics of Debian's packages, on the same samples, and then what has no peer: an hour on a machine that does nothing else.
bench-peers: build
	@for p in prometheus victoria-metrics; do command -v $$p >/dev/null || apt-get install -y -qq --no-install-recommends $$p; done
	$(BIN)/tidemark bench peers --series 1000
	$(BIN)/tidemark bench peers
	$(BIN)/tidemark bench peers --series 100000 --runs 1
	$(BIN)/tidemark bench growth
	$(BIN)/tidemark bench replay --samples 20000000
	$(BIN)/tidemark bench all

demo: build
	$(BIN)/tidemark demo

clean:
	rm -rf $(BIN)
