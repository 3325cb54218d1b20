.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

build: ## build bin/millrace
	go build -o bin/millrace ./cmd/millrace

demo: build ## show a cluster in one process; ONCE=1 exits after the first feed
	bin/millrace demo $(if $(ONCE),--once)

dev: build ## start an empty cluster in one process, and keep what is loaded
	bin/millrace dev

# What make vet finds is not looked for again by each go test.
check: VETTED = -vet=off
check: fmt-check vet lint test ## what every commit passes: format, vet, staticcheck, the short tests; SHORT= for all of them; at its end what was skipped
	@$(skipped)

gate: SHORT =
gate: VETTED = -vet=off
gate: check race bench-once ## what a release passes: make check with all tests, then under the race detector, and each benchmark once

# What go test says of each package, what failed, and what was skipped and why; in a
# file, for the end of the gate.
tested = mkdir -p .tests && go tool gotestsum --format standard-quiet --jsonfile .tests/$(1).json --
skipped = echo; sed -n 's/.*"Action":"skip","Package":"\([^"]*\)","Test":"\([^"]*\)".*/  \1 \2/p' .tests/*.json | sort -u >.tests/skipped; echo "$$(wc -l <.tests/skipped) tests were skipped:"; cat .tests/skipped

# Tests write and sync small files, and a disk takes half of their time. What go
# builds goes the same way: of a GOTMPDIR tests would make their directories, too.
TESTS = test race bench-once mutants e2e e2e-secured e2e-s3 faults simulate
$(TESTS): export TMPDIR := $(or $(shell scripts/memory),$(TMPDIR))

# How many packages are tested at once, and tests of one: the long ones wait more than they work.
PARALLEL = $(shell expr 2 '*' $$(getconf _NPROCESSORS_ONLN))

fmt-check: ## every Go file is as gofmt writes it
	@bad="$$(find . -name '*.go' -not -path './.*' -not -path '*/testdata/*' -print0 | xargs -0 gofmt -l)"; \
	[ -z "$$bad" ] || { echo "not as gofmt writes it:"; echo "$$bad"; exit 1; }

vet: ## go vet
	go vet ./...
	go vet -tags synctests ./internal/simulation

lint: ## staticcheck
	go tool staticcheck ./...
	go tool staticcheck -tags synctests ./internal/simulation

# What takes seconds is left to make gate.
SHORT = -short

# Clusters of processes, which long tests of the command line start, are tested when no other
# package is: some tell what a caller notices. The longest packages begin first.
beside = $(if $(SHORT),./cmd/cli)

test: ## the short tests, but those that SKIP names; SHORT= for all tests
	@rm -rf .tests
	$(call tested,all) $(VETTED) $(SHORT) -p $(PARALLEL) -timeout $(TIMEOUT) -parallel $(PARALLEL) -skip '$(SKIP)' ./internal/minicluster ./coordinator $(beside) $$(go list ./... | grep -v '/cmd/cli$$')
	$(if $(beside),,$(call tested,cli) $(VETTED) -timeout $(TIMEOUT) -parallel $(PARALLEL) -skip '$(SKIP)' ./cmd/cli)
	$(call tested,simulation) $(VETTED) $(SHORT) -tags synctests -timeout $(TIMEOUT) ./internal/simulation

# What several goroutines share. The race detector needs a C compiler. The command line's own tests
# (COMMANDS) are whole clusters, as those of minicluster are: a sixth of all that it takes.
RACE = ./internal/minicluster ./internal/mutants ./internal/arrivals $$(go list ./cmd/cli/... | grep -v '/cmd/cli$$') ./cmd/millrace/bench/... ./broker/... ./coordinator ./indexnode/... ./internal/backup/... ./internal/cluster/... ./internal/column ./internal/digest ./internal/door ./internal/experiments ./internal/exposure ./internal/kafka/... ./internal/load ./internal/permit ./partitioner ./relevance ./relevance/modelpack

COMMANDS = .

race: ## the tests of every package that starts goroutines, short, under the race detector; COMMANDS= names those of the command line, by a pattern
ifeq ($(shell go env CGO_ENABLED),1)
	$(call tested,race) $(VETTED) -race -short -p $(PARALLEL) -timeout $(TIMEOUT) -parallel $(PARALLEL) $(RACE)
	$(call tested,race-cli) $(VETTED) -race -short -timeout $(TIMEOUT) -parallel $(PARALLEL) -run '$(COMMANDS)' ./cmd/cli
else
	@echo "race: skipped, for want of a C compiler"
endif

mutants: ## faults put into AREA, one at a time: which does no test notice? AREA="./broker/... ./indexnode/..." N=20 SEED= WITH=./internal/minicluster, LEAST=90 of a hundred, LONG=1 for all tests
	go run ./internal/mutants -n $(or $(N),20) $(if $(SEED),-seed $(SEED)) $(if $(WITH),-with $(WITH)) $(if $(LONG),-long) $(if $(LEAST),-least $(LEAST)) $(or $(AREA),./broker/... ./indexnode/... ./internal/cluster/... ./internal/kafka/... ./partitioner ./compute ./schemas ./relevance/...)

bench-once: ## every benchmark once, so that none rots
	@go test $(VETTED) -short -run '^$$' -bench . -benchtime 1x -timeout $(TIMEOUT) $$(grep -rl '^func Benchmark' --include='*_test.go' . | xargs -n 1 dirname | sort -u) >.bench-once 2>&1 || { grep -E -A 5 '^(--- FAIL|panic|FAIL)|^#' .bench-once; exit 1; }

# hold FILE: the figures in what a run wrote, and a failure for those that miss their goals
# (internal/figure/goals.go). figures FILE is that without the failure.
figures = echo; grep '^{"figure"' $(1); ! grep -q '^FAIL' $(1)
hold = $(figures) && { ! grep -q '"missed":true' $(1) || { echo 'missed:'; grep '"missed":true' $(1); exit 1; }; }

bench: ## the benchmarks, a package at a time, and then the figures, a line of JSON each; fails for a goal that is missed
	go test -run '^$$' -bench . -benchmem -p 1 -timeout 60m ./... | tee .bench
	@$(call hold,.bench)

# Those whose figures are of bytes, of allocations, or of times that hang together.
STEADY = ./coordinator/plan ./schemas ./internal/filter ./codegen ./relevance/trees ./indexnode/query ./indexnode/cache ./indexnode/answers

steady: ## the steadiest figures, held to their goals in a minute or two
	@go test $(VETTED) -run '^$$' -bench '^Benchmark(ResizeMoves|Generated|Filter|Score|Trees|Sweep|Top|Hits|Lists|Judge)$$' -benchtime 1x -p 1 -timeout $(TIMEOUT) $(STEADY) | tee .steady
	@$(call hold,.steady)

bench-shapes: build ## whole clusters end to end, and their figures; DURATION=5s
	@for shape in fishdb followfeed; do bin/millrace bench --shape $$shape --duration $(or $(DURATION),5s) || echo "FAIL $$shape"; done | tee .shapes
	@$(call hold,.shapes)

regress: ## this tree, or HEAD=, against the commit BASE, by turns under the same load; fails on a loss. FLAGS="--rounds 20 --slack 0.03"
	scripts/regress "$(BASE)" "$(HEAD)" $(FLAGS)

# Wide, so that a busy machine does not fail it: it finds what is gross.
regress-short: ## this tree against the good commit that .ci/good names, in a minute or two
	scripts/regress "$$(cat .ci/good)" "" --rounds 6 --duration 1s --entities 3000 --slack 0.4 --slack-p99 4

# The address of the Kafka that `make kafka` starts.
MILLRACE_KAFKA ?= 127.0.0.1:$(or $(KAFKA_PORT),19092)

e2e: ## the end-to-end and kill tests on a real Kafka (make kafka first)
	MILLRACE_KAFKA=$(MILLRACE_KAFKA) go test -count=1 -p 1 -parallel $(PARALLEL) -timeout $(TIMEOUT) -run 'RealKafka|NothingIsLostByKills/^kafka$$|NothingIsLostByRebalances/^kafka$$' ./internal/kafka/... ./indexnode/backups ./partitioner ./internal/minicluster ./cmd/cli

# Where the Kafka of `make kafka-secured` is.
SECURED_PORT ?= 19192

e2e-secured: ## the end-to-end test on a Kafka and an etcd with TLS and users, and roles with mutual TLS, and its figures (make kafka-secured first)
	@MILLRACE_KAFKA_SECURED=127.0.0.1:$(SECURED_PORT) MILLRACE_KAFKA_SECRETS=$(CURDIR)/.kafka/secured-$(SECURED_PORT) go test -count=1 -timeout $(TIMEOUT) -v -run 'TestSecured' ./cmd/cli | tee .secured
	@$(call figures,.secured)

# The address of the S3 server that `make s3` starts.
MILLRACE_S3 ?= 127.0.0.1:$(or $(S3_PORT),19000)

e2e-s3: ## the tests of backups on a real S3 server (make s3 first)
	MILLRACE_S3=$(MILLRACE_S3) go test -count=1 -timeout $(TIMEOUT) ./internal/backup

bench-backup: ## what backups cost, also those who ask, and how fast they and a node come back, beside cp; with make s3, from S3 too
	MILLRACE_S3=$(if $(wildcard .s3/s3-*.pid),$(MILLRACE_S3)) go test -run '^$$' -bench 'Backups|Restore|Checkpoint|Bootstrap' -benchtime 1x -p 1 -timeout $(TIMEOUT) ./indexnode/store ./indexnode/backups ./internal/minicluster

# Of one package's tests.
TIMEOUT = 25m

metamorphic: ## random operations on the store against a model of it; DURATION=5m
	MILLRACE_METAMORPHIC=$(or $(DURATION),1m) go test -count=1 -timeout 0 -v -run 'TestMetamorphic|TestCrashAt|TestErrorAt|TestDamage' ./indexnode/store

simulate: ## the roles in one process and in virtual time, through random histories of faults; DURATION=10m, or 20x to repeat SEED=
	@MILLRACE_SIMULATE=$(or $(DURATION),10m) MILLRACE_SEED=$(SEED) go test -tags synctests -count=1 -timeout 0 -v -run TestHistories ./internal/simulation | tee .simulate
	@! grep -q '^FAIL' .simulate

# Figures are of a Kafka that compiles as in production.
faults rollouts: export KAFKA_COMPILER = $(if $(filter short,$(DURATION)),quick,full)

faults: ## processes on a real Kafka and etcd, broken on a schedule; DURATION=100m or short, SEED= repeats one, RUN= picks tests, STEPS='rollback|etcd killed' the steps of plans to break (needs root, nftables, Java)
	@MILLRACE_CAMPAIGN=$(or $(DURATION),100m) MILLRACE_SEED=$(SEED) MILLRACE_STEPS='$(STEPS)' go test -count=1 -timeout 0 -v -run '$(or $(RUN),.)' ./cmd/millrace/campaign | tee .faults
	@$(call $(if $(filter short,$(DURATION)),figures,hold),.faults)

outages: ## a cluster of processes, frozen, killed, overloaded, without etcd, its figures and its alerts; DURATION=30s (needs 2 processors, taskset and, for the alerts, prometheus, and root for a small disk)
	@MILLRACE_FAULTS=$(or $(DURATION),30s) go test -count=1 -timeout 0 -v -run 'TestFault' ./cmd/cli | tee .outages
	@$(call hold,.outages)

rollouts: ## models rolled out, shadowed and exposed on a cluster of processes, and its figures; DURATION=60s N=1000000 RUN= (needs root, Java, 2 processors and taskset)
	@MILLRACE_FAULTS=$(or $(DURATION),60s) MILLRACE_VERSIONS=$(or $(N),1000000) go test -count=1 -timeout 0 -v -run '$(or $(RUN),TestRolloutOf|TestRolloutShadows|TestRolloutExposures)' ./cmd/cli | tee .rollouts
	@$(call hold,.rollouts)

exact: ## random questions, random clusters, nodes down and slow, against the oracle; N=10000
	MILLRACE_EXACT=$(or $(N),10000) go test -count=1 -timeout 0 -v -run 'TestRandomClustersEqualTheOracle' ./internal/minicluster
	GOGC=400 go test -count=1 -timeout 0 -v -run 'TestAnswersEqualOneMachine' ./broker -rounds $$(( $(or $(N),10000) / 4 ))

plans: ## random clusters, planned and simulated step by step, and a leader that is frozen at each step; N=10000
	go test -count=1 -timeout 0 -v -run 'TestRandomClusters|TestForcedPlacements' ./coordinator/plan -clusters $(or $(N),10000)
	go test -count=1 -timeout 0 -v -run 'TestAFrozenLeader' ./coordinator -steps

stats: ## simulated experiments, each looked at a hundred times, and a twentieth as many ramps; N=20000
	go test -count=1 -timeout 0 -v -run 'Look|Alarms|Often|Found|Mismatch' ./internal/stats -runs $(or $(N),20000)
	go test -count=1 -timeout 0 -v -run 'TestRampsAtRandom' ./relevance/experiment/compare -ramps $$(( $(or $(N),20000) / 20 ))

chance: ## a million viewers over ten layers: slots, splits and pairs of layers by χ²; N=1000000
	go test -count=1 -timeout 0 -v -run 'TestChance' ./relevance/experiment -viewers $(or $(N),1000000)

interleaving: ## interleaving beside A/B on a cascade model of clicks, and credit against the drafts; N=1000
	go test -count=1 -timeout 0 -v -run 'TestInterleaving|TestEqualModels|TestCreditEquals' ./relevance/interleave -experiments $(or $(N),1000)

pages: ## random histories of pages, whose records come, change and go; N=10000
	GOGC=400 go test -count=1 -timeout 0 -v -run 'TestPagesNeverRepeatAndNeverSkip' ./broker -rounds $(or $(N),10000)

ops: ## the alerts of ops/, each on its fault and on an hour of normal load (needs promtool, of Debian's package prometheus)
	promtool check rules ops/alerts/*.yaml
	promtool test rules ops/alerts/tests/*.yaml

fuzz: ## every fuzz target for a while, configurations and decoders; DURATION=1m, and only those of a name: ONLY=FuzzConfigurations
	scripts/fuzz $(or $(DURATION),1m) $(or $(ONLY),.)

fuzz-doors: ## hostile requests at a broker of 512 MiB, by JSON and gRPC, for so much of a processor's time; DURATION=1h
	MILLRACE_DOORS=$(or $(DURATION),5m) go test -count=1 -timeout 0 -v -run 'TestFuzzDoors' ./broker

image: ## the image millrace:VERSION, by Docker; VERSION=v1.2.3
	docker build -f deploy/container/Dockerfile --build-arg VERSION=$(or $(VERSION),dev) --build-arg REVISION=$$(git rev-parse HEAD) -t millrace:$(or $(VERSION),dev) .

image-check: ## what the image holds as the whole root, read-only, and the binary in it (needs root)
	scripts/image-check

deploy-check: ## what deploy/ has, by its own linters, those that are there
	scripts/deploy-check

release: ## static binaries of linux/amd64 and linux/arm64 in dist/, with their modules and checksums; VERSION=v1.2.3
	scripts/release $(VERSION)

config-page: build ## write docs/configuration.md again, from the structs of configurations
	bin/millrace config reference >docs/configuration.md

proto: ## write the Go of api/*.proto again (needs protoc)
	go build -o bin/ tool
	cd api && PATH="$(CURDIR)/bin:$$PATH" protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative --connect-go_out=. --connect-go_opt=paths=source_relative,simple=true --include_source_info --descriptor_set_out=../broker/doors/feed.binpb millrace/feed/v1/feed.proto
	cd api && PATH="$(CURDIR)/bin:$$PATH" protoc -I . --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative millrace/node/v1/node.proto millrace/node/v1/admin.proto

kafka: ## start a real Kafka on 127.0.0.1:19092 (needs Java and, once, Maven)
	scripts/kafka start

kafka-stop: ## end it
	scripts/kafka stop

kafka-secured: ## start a real Kafka on 127.0.0.1:19192 that takes TLS and SASL alone (needs openssl besides)
	KAFKA_SECURED=1 KAFKA_PORT=$(SECURED_PORT) scripts/kafka start

kafka-secured-stop: ## end it
	KAFKA_PORT=$(SECURED_PORT) scripts/kafka stop

s3: ## start a real S3 server on 127.0.0.1:19000 (needs curl)
	scripts/s3 start

s3-stop: ## end it
	scripts/s3 stop

.PHONY: help build demo dev check gate fmt-check vet lint test race mutants bench bench-once steady bench-shapes regress regress-short metamorphic simulate faults outages rollouts exact plans stats chance interleaving pages ops fuzz fuzz-doors e2e e2e-s3 e2e-secured bench-backup image image-check deploy-check release config-page proto kafka kafka-stop kafka-secured kafka-secured-stop s3 s3-stop
