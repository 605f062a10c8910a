# Every target sets up what it needs in .venv, from constraints.txt, on a bare machine with Python 3.11 or later.
PYTHON ?= python3
BIN := .venv/bin
# A run of the tests starts hundreds of processes; without compiled files each of them compiles ranklake anew.
unexport PYTHONDONTWRITEBYTECODE
# What writes through the hot path, which has to hold in C as well as in Python.
NATIVE_TESTS := $(addprefix tests/capture/test_,run.py slots.py fork.py bad_input.py)
# As many at a time, a file's tests one after the other in one of them, in the order that tests/conftest.py gives the files.
WORKERS := 2
PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet

.DEFAULT_GOAL := help
.PHONY: help demo native published lint types format deployments catalog package clean nightly
.PHONY: test test-slow test-up test-postgres test-moto test-s3 test-stores test-frameworks test-pages
.PHONY: bench bench-short crash fuzz fortnight

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

# DeepSpeed compiles itself against the torch that is there; none of its kernels is needed.
.venv/.deepspeed: .venv/.test
	@$(BIN)/python -c 'import deepspeed' 2>/dev/null || \
		DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --no-build-isolation 'deepspeed>=0.19'
	@touch $@

.venv/.base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ranklake needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.demo: .venv/.base pyproject.toml constraints.txt
	@echo "installing into .venv, from constraints.txt: this checkout as ranklake[pipeline,report,torch], with torch, Prefect,"
	@echo "Dask, Delta Lake, DataFusion and the chart library; nothing outside .venv changes (a few minutes the first time)"
	@$(INSTALL) --editable '.[pipeline,report,torch]'
	@touch $@

.venv/.test: .venv/.demo
	@$(INSTALL) --editable '.[pipeline,torch,dev]'
	@touch $@

native: .venv/.test ## compile the optional hot path in C, in place: wheels have it, editable installs do not
	@$(BIN)/python -m ranklake.capture.build

demo: .venv/.demo ## train a small model on two ranks, record it, and run the whole pipeline
	@$(BIN)/ranklake demo

# More than two cores: many tests wait, for processes, stores and clocks.
test: WORKERS := 4
test: .venv/.test ## run the test suite (five to ten minutes on two cores), then capture's once more with the hot path in C
	@RANKLAKE_NATIVE=0 $(BIN)/python -m pytest $(PARALLEL)
	@$(BIN)/python -m ranklake.capture.build
	@RANKLAKE_NATIVE=1 $(BIN)/python -m pytest $(PARALLEL) tests/capture/test_native.py $(NATIVE_TESTS)

# Those that are slow and need nothing else: no server or campaign of a target of its own.
# Only files that have such a test are collected: each worker reads all that it is given, some 20 CPU seconds of it.
# Of these, PART=2/4 takes each fourth file, from the second on. Targets with few files take each fourth test (--part).
files = grep -rlE 'mark\.$(1)\b' tests --include='test_*.py' | sort
marked = $(shell $(files) | \
	awk -v part="$(or $(PART),1/1)" 'BEGIN {split(part, of, "/")} NR % of[2] == of[1] % of[2]')
SLOW := slow and not (stores or moto or radosgw or up or postgres or crash or frameworks or bench or fuzz or pages)
test-slow: WORKERS := 3
test-slow: .venv/.test ## run the tests that take some seconds each, all or some (PART=1/4): the demo, flows on a real server, documented commands, properties
	@RANKLAKE_NATIVE=0 $(BIN)/python -m pytest $(PARALLEL) --timeout 900 -m "$(SLOW)" $(call marked,slow)

# Azure's own emulator is a package of npm's; without npm its tests fail and the others run.
.venv/.stores: .venv/.test
	@$(INSTALL) --editable '.[pipeline,torch,dev,stores]'
	@npm install --silent --no-fund --no-audit --prefix .stores azurite@3.37.0 || echo "no npm, or no azurite: Azure's protocol is not tested" >&2
	@touch $@

# Debian's packages of Ceph, unpacked into a folder of ours (70 MB to fetch): nothing is installed.
.stores/.ceph: tests/support/radosgw.py
	@rm -rf .stores/ceph
	@$(BIN)/python tests/support/radosgw.py .stores/ceph || { echo "no Debian package radosgw to be had (apt-get update?): the lake is not tested on Ceph" >&2; exit 2; }
	@touch $@

test-moto: .venv/.test ## run the whole lake, and what becomes of a store that fails, on S3's protocol as moto speaks it
	@$(BIN)/python -m pytest $(PARALLEL) -m moto $(call marked,moto)

test-s3: .venv/.test .stores/.ceph ## run the lake's and the stores' contract against a real Ceph radosgw, started for it
	@$(BIN)/python -m pytest -m radosgw --part $(or $(PART),1/1) $(shell $(call files,radosgw))

test-up: .venv/.test ## run `ranklake up` on a server of its own, with all that it serves
	@$(BIN)/python -m pytest -m up tests/flows

# Debian's package, if the machine lets us install it; without one its tests are skipped with the reason.
test-postgres: .venv/.test ## run `ranklake up` on a real PostgreSQL that goes away under it
	@$(BIN)/python tests/support/postgres.py || apt-get install --yes --quiet postgresql || true
	@$(BIN)/python -m pytest -q -m postgres tests/flows

test-stores: .venv/.stores ## run the stores' contract against servers of S3, Azure's and Google's protocols
	@$(BIN)/python -m pytest -m stores tests/stores

# The browser is Debian's, or the one that CHROMIUM names; it is installed where apt-get may.
.venv/.pages: .venv/.test
	@$(INSTALL) --editable '.[pipeline,torch,dev,pages]'
	@test -n "$(CHROMIUM)" || command -v chromium >/dev/null || \
		{ apt-get update -qq && apt-get install -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || \
		{ echo "no chromium to be had; name one with CHROMIUM=/path/to/chromium" >&2; exit 2; }
	@touch $@

test-pages: .venv/.pages ## open report pages in headless Chromium: console, requests, accessibility, three widths, both themes
	@CHROMIUM=$${CHROMIUM:-chromium} $(BIN)/python -m pytest -m pages --part $(or $(PART),1/1) tests/pages

# DeepSpeed compiles a kernel for minutes, so it is left out unless it is asked for.
test-frameworks: .venv/.test $(if $(DEEPSPEED),.venv/.deepspeed) ## train with each framework, in each way that is recorded (DEEPSPEED=1 for that, too)
	@$(BIN)/python -m pytest $(PARALLEL) -m frameworks $(if $(DEEPSPEED),,-k "not deepspeed") --part $(or $(PART),1/1) tests/capture/frameworks tests/end_to_end

published: .venv/.test ## published figures from import to rollup: published, computed, tolerance, verdict
	@RANKLAKE_CAPTURE_SAMPLERS=off $(BIN)/python tests/support/published_report.py

lint: .venv/.test ## ruff, and what is generated is up to date
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m ranklake.lake.migrations
	@$(BIN)/python -m ranklake.insight.catalog --check
	@$(BIN)/python -m ranklake.flows.deployment_file docs/deploy/prefect.yaml --check
	@$(BIN)/python -m ranklake.settings_reference --check

types: .venv/.test ## mypy, strict
	@$(BIN)/mypy

format: .venv/.test ## format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

deployments: .venv/.test ## write docs/deploy/prefect.yaml from the deployments
	@$(BIN)/python -m ranklake.flows.deployment_file docs/deploy/prefect.yaml

catalog: .venv/.test ## write docs/catalog from the contracts, and docs/settings.md from the settings
	@$(BIN)/python -m ranklake.insight.catalog --write
	@$(BIN)/python -m ranklake.settings_reference --write

snapshots: ;

# Campaigns of their own, each with what it takes beside KILLS. LAKE and SPOOL may be URIs of an object store, and STORAGE
# its options as JSON; FAULTS='--seed N --case K' runs one case again, and those of its lake before it.
CRASH_chaos = $(BIN)/python tests/crash/chaos.py $(or $(LAKE),$$place/lake) $(or $(SPOOL),$$place/spool) --kills $(or $(KILLS),200) --storage '$(or $(STORAGE),{})'
CRASH_chaos-s3 = $(BIN)/python tests/crash/chaos.py --radosgw --kills $(or $(KILLS),200)
CRASH_up = $(BIN)/python tests/crash/up_chaos.py --minutes $(or $(MINUTES),20)
CRASH_faults = $(BIN)/python tests/crash/faults.py $(or $(FAULTS),--faults $(or $(KILLS),900))
CRASH_bitflips = RANKLAKE_FLIPS=$(or $(KILLS),1000) $(BIN)/python -m pytest -q -m "slow or not slow" tests/lake/tables/test_damage.py --timeout 3600
CRASH_capture = RANKLAKE_KILLS=$(or $(KILLS),1000) $(BIN)/python -m pytest -m crash tests/crash/test_capture_kills.py --timeout 3600
CRASH_planted = $(BIN)/python tests/crash/planted.py $$place --seed $(or $(SEED),0) $(FAULTS)
CRASH_night = PYTHONPATH=tests/support:tests/fortnight $(BIN)/python tests/crash/night.py $$place
CRASH_up-night = PYTHONPATH=tests/support:tests/fortnight:tests/crash $(BIN)/python tests/crash/up_night.py $$place
CRASH_retention = $(BIN)/python tests/crash/retention_chaos.py $$place --kills $(or $(KILLS),100) $(if $(STEPS),--steps $(STEPS))
CRASH_migrate = $(BIN)/python tests/crash/migrate_chaos.py $$place --rows $(or $(ROWS),20000000) --kills $(or $(KILLS),100) --minutes $(or $(MINUTES),20)
CRASH_ = RANKLAKE_KILLS=$(or $(KILLS),500) RANKLAKE_FAULTS=$(or $(FAULTS),60) $(BIN)/python -m pytest $(PARALLEL) -m crash tests/crash tests/end_to_end --timeout 3600
crash: .venv/.test $(if $(filter chaos-s3,$(NAME)),.stores/.ceph) ## kill capture, agent, ingest and cluster at random points (KILLS=500), and some faults; or a campaign by NAME: chaos, chaos-s3, up, faults, bitflips, capture, planted, night, up-night, retention, migrate
	@$(if $(CRASH_$(NAME)),,$(error no campaign of that name; 'make help' lists them))place=$$(mktemp -d); export PYTHONPATH=tests/support; \
		$(CRASH_$(NAME)) && rm -r $$place

fuzz: .venv/.test ## hostile names, footers, pages, packs, plans and log entries, and rows of any values that contracts allow, against every command (CASES=10000 SEEDS=20; FUZZ='--seed N --case K' for one)
	@PYTHONPATH=tests/support $(BIN)/python tests/fuzz/campaign.py $(or $(FUZZ),--cases $(or $(CASES),10000))
	@$(if $(FUZZ),,PYTHONPATH=tests/support $(BIN)/python tests/support/any_values.py $$(seq 1 $(or $(SEEDS),20)))

fortnight: .venv/.test ## live through a fortnight of plain use by a moved clock: three nodes, some 20 jobs a day, a round each hour (SEED=2; FORTNIGHT=--short for two days)
	@place=$$(mktemp -d) && $(BIN)/python tests/fortnight/campaign.py $$place --seed $(or $(SEED),1) $(FORTNIGHT) && rm -r $$place

# The peers, in an environment of their own; each may be missing, and is then shown as not available.
PEERS := 'tensorboardX tensorboard' trackio wandb 'mlflow-skinny sqlalchemy alembic pandas matplotlib' opentelemetry-sdk
BENCH_INSTALL := PIP_CONSTRAINT=tests/bench/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 .bench-venv/bin/python -m pip install --quiet

.bench-venv/.ready: pyproject.toml tests/bench/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ranklake needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv .bench-venv
	@$(BENCH_INSTALL) .
	@for peer in $(PEERS); do $(BENCH_INSTALL) $$peer || echo "cannot install $$peer" >&2; done
	@touch $@

# Packages of a peer lie beside those of the environment, which come first.
.bench-peers/.pointblank:
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target .bench-peers pointblank==1.1.1 2>/dev/null && touch $@ || echo "cannot install pointblank" >&2

# What some need beside .venv, and the Python of one whose peers have an environment of their own.
NEEDS_capture := .bench-venv/.ready
NEEDS_everyday := .bench-venv/.ready
NEEDS_quality := .bench-peers/.pointblank
NEEDS_pages := .venv/.pages
BENCH_PYTHON = $(if $(filter capture,$(NAME)),.bench-venv,.venv)/bin/python
BENCHES = $(sort $(patsubst tests/bench/%_bench.py,%,$(filter-out tests/bench/test_%,$(wildcard tests/bench/*_bench.py))))
bench: .venv/.test $(NEEDS_$(NAME)) ## measure NAME beside its peers (ROWS=N where it takes rows, ARGS='--json'); without NAME, list what there is
	@$(if $(NAME),$(if $(filter $(NAME),$(BENCHES)),,$(error no bench of that name; 'make bench' lists them)),for name in $(BENCHES); do \
		printf '%-12s %s\n' $$name "$$(head -1 tests/bench/$${name}_bench.py | tr -d '"')"; done; exit)
	@$(if $(filter capture,$(NAME)),$(BENCH_INSTALL) --no-deps --force-reinstall .) # as users get it: a wheel, with the hot path in C
	@$(if $(NAME),CHROMIUM=$${CHROMIUM:-chromium} $(BENCH_PYTHON) tests/bench/$(NAME)_bench.py $(if $(ROWS),--rows $(ROWS)) $(ARGS))

bench-short: .venv/.test ## each benchmark in short form, to see that it runs and what it measures holds
	@$(BIN)/python -m pytest $(PARALLEL) -m bench $(call marked,bench)

# Hours. What CI runs in part, and what it leaves out.
nightly: ## run all tests, the short benchmarks and each campaign in full
	@for target in lint types package test test-slow test-moto test-up test-postgres test-stores test-pages test-s3 "test-frameworks DEEPSPEED=1" \
		published bench-short crash fuzz fortnight $(addprefix crash-,$(filter-out CRASH_,$(patsubst CRASH_%,%,$(filter CRASH_%,$(.VARIABLES))))); do \
		printf '\n== %s (%s)\n' "$$target" "$$(date +%T)"; \
		case $$target in crash-*) $(MAKE) --no-print-directory crash NAME=$${target#crash-};; *) $(MAKE) --no-print-directory $$target;; esac || failed="$$failed $$target"; \
	done; test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

package: .venv/.test ## build wheel (with the hot path in C, where it compiles) and sdist, compare them with git, smoke-test the wheel in an empty environment
	@$(BIN)/python tests/package/check_distributions.py

clean: ## remove what the targets made
	rm -rf .venv .bench-venv .stores dist demo-lake .pytest_cache .mypy_cache .ruff_cache .hypothesis
