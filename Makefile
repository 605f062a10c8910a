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
.PHONY: help demo native published lint types format deployments catalog snapshots package clean
.PHONY: test test-slow test-up test-postgres test-moto test-s3 test-stores test-frameworks test-frameworks-light test-pages
.PHONY: fortnight chaos chaos-s3 chaos-up crash faults fuzz crash-capture crash-migrate crash-retention
.PHONY: bench-capture bench-short bench-scale bench-overhead bench-samplers bench-outage bench-headline bench-import bench-sql bench-lake bench-lake-more bench-rollup bench-quality bench-check bench-migrate bench-retention bench-audit bench-report bench-pages bench-share bench-workers bench-straggler bench-everyday bench-watch

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

native: .venv/.test ## compile the optional hot path in C, in place
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
# Of these, PART=2/4 takes each fourth, from the second on. Other targets whose tests lie in several files take it, too.
marked = $(shell grep -rlE 'mark\.$(1)\b' tests --include='test_*.py' | sort | \
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
	@$(BIN)/python -m pytest -m radosgw $(call marked,radosgw)

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
	@CHROMIUM=$${CHROMIUM:-chromium} $(BIN)/python -m pytest -m pages tests/pages

# DeepSpeed compiles a kernel for minutes, so the others are a target of their own.
test-frameworks-light: .venv/.test ## train with each framework but DeepSpeed, in each way that is recorded
	@$(BIN)/python -m pytest $(PARALLEL) -m frameworks -k "not deepspeed" tests/capture/frameworks tests/end_to_end

test-frameworks: .venv/.deepspeed ## train with each framework, DeepSpeed included, in each way that is recorded
	@$(BIN)/python -m pytest $(PARALLEL) -m frameworks tests/capture/frameworks tests/end_to_end

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

chaos-up: .venv/.test ## SIGKILL at random on what `ranklake up` runs, while segments come (RANKLAKE_MINUTES=20)
	@$(BIN)/python tests/crash/up_chaos.py --minutes $${RANKLAKE_MINUTES:-20}

crash: .venv/.test ## kill capture, the agent, ingest and the cluster at random points, many times (RANKLAKE_KILLS, default 500), and some faults (RANKLAKE_FAULTS, default 60)
	@RANKLAKE_KILLS=$${RANKLAKE_KILLS:-500} $(BIN)/python -m pytest $(PARALLEL) -m crash tests/crash tests/end_to_end --timeout 3600

# LAKE and SPOOL may be URIs of an object store, and STORAGE its options as JSON.
chaos: .venv/.test ## 3 drivers, upkeep and 4 Dask workers killed at random (RANKLAKE_KILLS, default 200)
	@place=$$(mktemp -d) && PYTHONPATH=tests/support $(BIN)/python tests/crash/chaos.py $${LAKE:-$$place/lake} $${SPOOL:-$$place/spool} \
		--kills $${RANKLAKE_KILLS:-200} --storage "$${STORAGE:-{\}}" && rm -r $$place

chaos-s3: .venv/.test .stores/.ceph ## the same on a real Ceph radosgw that flaps
	@PYTHONPATH=tests/support $(BIN)/python tests/crash/chaos.py --radosgw --kills $${RANKLAKE_KILLS:-200}

# FAULTS='--seed N --case K' runs one case again, and those of its lake before it.
faults: .venv/.test ## operations of the disk that fail in every command, poison in the spool (RANKLAKE_FAULTS, default 900)
	@PYTHONPATH=tests/support $(BIN)/python tests/crash/faults.py $(or $(FAULTS),--faults $${RANKLAKE_FAULTS:-900})

fortnight: .venv/.test ## live through a fortnight of plain use by a moved clock: three nodes, some 20 jobs a day, a round each hour (SEED=2; FORTNIGHT=--short for two days)
	@place=$$(mktemp -d) && $(BIN)/python tests/fortnight/campaign.py $$place --seed $(or $(SEED),1) $(FORTNIGHT) && rm -r $$place

fuzz: .venv/.test ## hostile names, footers, pages, packs, plans and log entries, and rows of any values that contracts allow, against every command (RANKLAKE_FUZZ_CASES, default 10000; FUZZ='--seed N --case K' for one)
	@PYTHONPATH=tests/support $(BIN)/python tests/fuzz/campaign.py $(or $(FUZZ),--cases $${RANKLAKE_FUZZ_CASES:-10000})
	@$(if $(FUZZ),,PYTHONPATH=tests/support $(BIN)/python tests/support/any_values.py $$(seq 1 $${RANKLAKE_FUZZ_SEEDS:-20}))

bitflips: .venv/.test ## turn bits of data files (RANKLAKE_FLIPS, default 1000): what rewrites or rolls up finds each, scrub finds all, replay brings back each row
	@RANKLAKE_FLIPS=$${RANKLAKE_FLIPS:-1000} $(BIN)/python -m pytest -q -m "slow or not slow" tests/lake/test_damage.py --timeout 3600

crash-capture: .venv/.test ## the same for capture alone
	@RANKLAKE_KILLS=$${RANKLAKE_KILLS:-1000} $(BIN)/python -m pytest -m crash tests/crash/test_capture_kills.py --timeout 3600

crash-retention: .venv/.test ## kill retention's steps (apply, cancel, purge, archive, rehydrate, erase, forget) at random (RANKLAKE_KILLS of each, default 100; STEPS which die, default all)
	@place=$$(mktemp -d) && PYTHONPATH=tests/support $(BIN)/python tests/crash/retention_chaos.py $$place \
		--kills $${RANKLAKE_KILLS:-100} $(if $(STEPS),--steps $(STEPS)) && rm -r $$place

crash-migrate: .venv/.test ## kill a migration forth and back at random, beside ingest, upkeep and a reader (RANKLAKE_KILLS, default 100; ROWS, default 20000000; MINUTES, default 20; some 6 GB of disk)
	@place=$$(mktemp -d) && PYTHONPATH=tests/support $(BIN)/python tests/crash/migrate_chaos.py $$place --rows $(or $(ROWS),20000000) \
		--kills $${RANKLAKE_KILLS:-100} --minutes $(or $(MINUTES),20) && rm -r $$place

# The peers, in an environment of their own; each may be missing, and is then shown as not available.
PEERS := 'tensorboardX tensorboard' wandb 'mlflow-skinny sqlalchemy alembic pandas matplotlib' opentelemetry-sdk
BENCH_INSTALL := PIP_CONSTRAINT=tests/bench/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 .bench-venv/bin/python -m pip install --quiet

.bench-venv/.ready: pyproject.toml tests/bench/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ranklake needs Python 3.11 or later; name one with PYTHON=..." >&2; exit 2; }
	$(PYTHON) -m venv .bench-venv
	@$(BENCH_INSTALL) --editable .
	@for peer in $(PEERS); do $(BENCH_INSTALL) $$peer || echo "cannot install $$peer" >&2; done
	@touch $@

bench-capture: .bench-venv/.ready ## what recording costs the calling thread, beside its peers, as ratios
	@.bench-venv/bin/python -m ranklake.capture.build || echo "the hot path in C cannot be built here: measured in Python alone" >&2
	@.bench-venv/bin/python tests/bench/capture_bench.py
	@echo && RANKLAKE_NATIVE=0 .bench-venv/bin/python tests/bench/capture_bench.py --without-peers

bench-short: .venv/.test ## each benchmark in short form, to see that it runs and what it measures holds
	@$(BIN)/python -m pytest $(PARALLEL) -m bench $(call marked,bench)

bench-everyday: .venv/.test .bench-venv/.ready ## thirty everyday tasks beside MLflow, TensorBoard and wandb: steps and seconds of each
	@$(BIN)/python tests/bench/everyday_bench.py

bench-watch: .venv/.test ## what following a run costs its ranks, and how far behind it is (WATCH='--turns 24')
	@$(BIN)/python tests/bench/watch_bench.py $(WATCH)

bench-outage: .venv/.test ## how long recording calls take while the store is away, flaps, or the disk is full
	@$(BIN)/python -m pytest -q -s -m bench tests/capture/test_outage.py

bench-overhead: .venv/.test ## what recording costs a real training loop on a CPU, and all default sources with the agent a node
	@$(BIN)/python tests/bench/overhead_bench.py
	@$(BIN)/python tests/bench/sources_bench.py

bench-samplers: .venv/.test ## what the samplers and the node agent cost
	@$(BIN)/python tests/bench/sampler_bench.py

bench-scale: .venv/.test ## what one node's ranks and agent send, reckoned up to 10,000 ranks (six minutes)
	@$(BIN)/python tests/bench/scale_bench.py --minutes 5

bench-sql: .venv/.test ## ranklake sql beside DuckDB, Polars and bare DataFusion on the same files (ROWS=160000000 for all)
	@$(BIN)/python tests/bench/sql_bench.py --rows $(or $(ROWS),10000000)

# Packages of a peer lie beside those of the environment, which come first.
.bench-peers/.pointblank:
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --target .bench-peers pointblank==1.1.1 2>/dev/null && touch $@ || echo "cannot install pointblank" >&2

bench-quality: .venv/.test .bench-peers/.pointblank ## 20 expectations beside Great Expectations, DuckDB and pointblank on the same files, as ratios (ROWS=40000000 for all)
	@$(BIN)/python tests/bench/quality_bench.py --peers .bench-peers --rows $(or $(ROWS),1000000)
	@echo && $(BIN)/python tests/bench/quality_bench.py --peers .bench-peers --rows $(or $(ROWS),1000000) --dirty

bench-check: .venv/.test ## a cold `ranklake check` with one changed partition: wall and CPU time, memory (ROWS=N of a date)
	@$(BIN)/python tests/bench/cold_check_bench.py --rows $(or $(ROWS),1000000)

bench-report: .venv/.test ## the site of data quality: built, refreshed, largest page, for 42 tables of 90 dates
	@$(BIN)/python tests/bench/report_bench.py

bench-pages: .venv/.pages ## how soon pages of a day of 4,096 GPUs can be read in headless Chromium (SITE=report for a site that is there)
	@CHROMIUM=$${CHROMIUM:-chromium} $(BIN)/python tests/bench/pages_bench.py $(if $(SITE),--site $(SITE))

bench-rollup: .venv/.test ## what rolling up steps and GPU samples costs, beside the bare scan and bare DataFusion (ROWS=160000000 for all)
	@$(BIN)/python tests/bench/rollup_bench.py --rows $(or $(ROWS),8000000)

bench-migrate: .venv/.test ## an added column and a rewrite, beside DuckDB and delta-rs on the same files, as ratios (ROWS=8000000, MIGRATE='--full' or '--table gpu_samples')
	@$(BIN)/python tests/bench/migrate_bench.py --rows $(or $(ROWS),8000000) $(MIGRATE)

bench-retention: .venv/.test ## a plan, 30 dates applied and a downsampling of 90 dates, beside DuckDB and delta-rs on the same files, as ratios (ROWS=50000000 for all)
	@$(BIN)/python tests/bench/retention_bench.py --rows $(or $(ROWS),8000000)

bench-audit: .venv/.test ## what an append to a long audit trail takes, and a proof of all of it and of its end (ROWS=1000000)
	@$(BIN)/python tests/bench/audit_bench.py --rows $(or $(ROWS),1000000)

bench-share: .venv/.test ## first build of a share, and a refresh after one more hour (ROWS=160000000 for all; some 6 GB of disk; SHARE='--workers 2')
	@$(BIN)/python tests/bench/share_bench.py --rows $(or $(ROWS),20000000) $(SHARE)

bench-workers: .venv/.test ## what a second worker saves a check and a round of rollups of 64 GPUs' half hour, and that the results are the same
	@$(BIN)/python tests/bench/workers_bench.py

bench-straggler: .venv/.test ## whether a rank slow in 1 % of its steps is found in the demo model's own noise (four minutes, a machine at rest)
	@$(BIN)/python tests/bench/straggler_bench.py

bench-import: .venv/.test ## what importing an MLPerf log of 11,616 ranks costs, beside as many bare Parquet files
	@$(BIN)/python tests/bench/import_bench.py

bench-headline: .venv/.test ## from segments to checked, rolled-up tables, reckoned up to a 10,000-GPU hour (HEADLINE='--gpus 512 --hours 1' for the page's figures)
	@$(BIN)/python tests/bench/headline_bench.py $(HEADLINE)

bench-lake: .venv/.test ## what bringing 20 million rows into the lake costs, beside the bare limit, Polars and DuckDB, as ratios
	@$(BIN)/python tests/bench/lake_bench.py --rows $${RANKLAKE_BENCH_ROWS:-20000000}

bench-lake-more: .venv/.test ## the same for size, two cores, a minute into a full lake, and 10 to 160 million rows (an hour)
	@$(BIN)/python tests/bench/lake_bench.py --sizes --rows 2000000
	@$(BIN)/python tests/bench/lake_bench.py --cores --rows 20000000
	@$(BIN)/python tests/bench/lake_bench.py --incremental --rows 160000000
	@$(BIN)/python tests/bench/lake_bench.py --linear --rows 160000000

package: .venv/.test ## build wheel and sdist, compare them with git, smoke-test the wheel in an empty environment
	@$(BIN)/python tests/package/check_distributions.py

clean: ## remove what the targets made
	rm -rf .venv .bench-venv .stores dist demo-lake .pytest_cache .mypy_cache .ruff_cache .hypothesis
