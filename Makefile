# Everything a checkout needs, on a machine that has Python 3.11 to 3.14 and make. `make help` lists the targets.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo up test contrib test-postgres outage cluster systems alone e2e screenshots deploy image docs s3 catalogs kafka brokers namespaces senders stress examples chaos fuzz searches slow full check check-types check-rules audit wheel-demo clean

# A Python of your choice: make PYTHON=/path/to/python3. Arguments for a target's command: make demo ARGS=--help.
PYTHON ?=
ARGS ?=

# An environment of its own, beside that of another Python: make test PYTHON=python3.13 VENV=.venv-3.13
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# Our own uv, if the machine has none. It is never installed for the whole machine.
UV_VENV := .uv-venv

# Without .pyc files each process compiles Dagster again when it imports it, which takes seconds.
unexport PYTHONDONTWRITEBYTECODE
# Ignore an active environment of another project.
unexport VIRTUAL_ENV
unexport UV_PROJECT_ENVIRONMENT

# Make the environment again if it has another Python than PYTHON. Without PYTHON it keeps the one that it has.
WHICH_PYTHON := import sys; print(*sys.version_info[:3], sys.base_prefix)
ifneq ($(PYTHON),)
  ifneq ($(shell "$(PYTHON)" -c '$(WHICH_PYTHON)' 2>/dev/null),$(shell $(BIN)/python -c '$(WHICH_PYTHON)' 2>/dev/null))
    ANOTHER_PYTHON := another-python
  endif
endif
.PHONY: another-python

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1|\2/p' Makefile | while IFS='|' read -r name what; do \
	  printf '%-18s %s\n' "$$name" "$$what"; done

setup: $(STAMP) ## install what is missing into .venv, at the versions of uv.lock

demo: $(STAMP) ## run the whole path of a record on real flights; takes about a minute and a half
	@$(BIN)/forebay demo $(ARGS)

up: $(STAMP) ## run a pipeline module on this machine until Ctrl-C: make up ARGS=my_pipeline.py
	@$(BIN)/forebay up $(ARGS)

# Each process takes whole files, in order: a module's shared fixtures are created once, and it loads no other's files.
# Those that start a JVM come first, and two processes take them all.
# More processes than cores, because many tests wait most of their time: four take 8 GB, three 6. The JVMs start from an
# archive of Spark's classes, which is made once for an environment.
WORKERS ?= $(shell awk '/^MemAvailable/ {print ($$2 > 12000000) ? 4 : 3}' /proc/meminfo 2>/dev/null || echo 3)
IN_PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder -p tests.support.scheduling
test: $(STAMP) ## each behaviour that needs no broker, cluster or browser; ARGS="tests/unit -k frame" for a part
	@$(if $(filter tests/unit%,$(ARGS)),,$(BIN)/python -m tests.support.spark.class_archive)
	@$(BIN)/python -m pytest $(IN_PARALLEL) $(ARGS)

contrib: $(STAMP) ## the contributed kinds of source and sink (forebay_contrib), as far as they need no broker
	@$(BIN)/python -m tests.support.spark.class_archive
	@$(BIN)/python -m pytest $(IN_PARALLEL) forebay_contrib $(ARGS)

searches: $(STAMP) ## all properties with new examples, and the searches with all of theirs and not a quarter, at most 150
	FOREBAY_TEST_SEARCH=whole $(BIN)/python -m pytest $(IN_PARALLEL) -m "(search or hypothesis) and not slow" forebay_contrib tests $(ARGS)

slow: $(STAMP) ## tests that take long and need nothing else: whole systems, kills, instances of Dagster
	@$(BIN)/python -m tests.support.spark.class_archive
	FOREBAY_TEST_SEARCH=whole $(BIN)/python -m pytest $(IN_PARALLEL) -m slow tests forebay_contrib $(ARGS)

FROM ?=
full: ## all that exists, from cheap to expensive, before a release; FROM=cluster goes on there; the table: build/full.md
	@.ci/full $(FROM)

# The driver log's tests, for every other version of Postgres that is available here.
POSTGRES_TESTS := tests/integration/tracker_store --ignore=tests/integration/tracker_store/server/test_embedded_postgres.py

test-postgres: $(STAMP) ## the driver log's tests on Postgres 16, and on each that Debian has installed
	FOREBAY_TEST_POSTGRES_VERSION=16 $(BIN)/python -m pytest $(IN_PARALLEL) $(POSTGRES_TESTS) $(ARGS)
	@set -e; for folder in /usr/lib/postgresql/*/bin; do \
	  if [ -x "$$folder/postgres" ]; then \
	    echo "Postgres of $$folder"; \
	    FOREBAY_TEST_POSTGRES_BINARIES="$$folder" $(BIN)/python -m pytest $(IN_PARALLEL) $(POSTGRES_TESTS) $(ARGS); \
	  fi; \
	done

SECONDS ?= 15
outage: $(STAMP) ## Postgres stopped, killed, full, locked, failed over under load; SECONDS=15 of each long outage
	POSTGRES_AWAY_SECONDS=$(SECONDS) $(BIN)/python -m pytest -m outage tests/faults $(ARGS)

cluster: $(STAMP) ## a pipeline on a Spark standalone cluster and on Spark Connect; streaming queries that are killed
	$(BIN)/python -m pytest $(IN_PARALLEL) -m cluster tests/integration $(ARGS)

systems: $(STAMP) ## whole systems: drained, stopped with records in flight, losing a host or their tracker
	$(BIN)/python -m pytest $(IN_PARALLEL) -m "systems and not alone" tests/faults $(ARGS)

alone: $(STAMP) ## tests of promised times, which need a machine with nothing beside them
	$(BIN)/python -m pytest -m alone tests/faults $(ARGS)

e2e: $(STAMP) ## a system's open ports, and the UI's pages in a headless Chromium on PATH; pictures: build/screenshots
	$(BIN)/python -m pytest -m e2e tests/e2e $(ARGS)

# The pages show docs/images, which are pictures of these tests: run this when the pages have changed.
screenshots: e2e ## renew the pictures in docs/images from those of `make e2e`
	@for picture in docs/images/*.png; do cp -v "build/screenshots/$$(basename "$$picture")" "$$picture"; done

deploy: $(STAMP) ## alerts, dashboard, systemd units and Kubernetes' files, checked by Debian's prometheus and systemd
	$(BIN)/python -m pytest -m deploy tests/integration/deploy $(ARGS)

image: ## build deploy/Containerfile with podman or docker, and run it; where neither can build, `make test` checks its text
	@set -e; for builder in podman docker; do if $$builder info >/dev/null 2>&1; then \
	  $$builder build -f deploy/Containerfile -t forebay:local . && \
	  exec $$builder run --rm --read-only --tmpfs /tmp forebay:local --version; exit 1; fi; done; \
	echo "There is neither podman nor docker with a daemon that runs: install one." >&2; exit 1

# In an environment of its own: nothing else needs these packages.
docs: $(STAMP) ## the documentation as a site, in build/site; a warning, such as a link without a target, is an error
	@PATH="$(CURDIR)/$(UV_VENV)/bin:$$PATH" UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT="$(CURDIR)/.venv-docs" \
	  uv sync --quiet --locked --only-group docs --python $(BIN)/python
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build $(ARGS)

s3: $(STAMP) ## the block store and sinks on a real S3 server, built by Go, and sinks on Azurite, from npm; once, into ~/.cache/forebay-tests
	$(BIN)/python -m pytest -m s3 tests/integration/s3 forebay_contrib $(ARGS)

catalogs: $(STAMP) ## the Iceberg sink on Apache Iceberg's own REST catalog and S3, and Apicurio's schema registry; needs Java, Maven, Go
	$(BIN)/python -m pytest -m catalogs forebay_contrib $(ARGS)

kafka: $(STAMP) ## the Kafka source and sink on Apache Kafka, downloaded by Maven into ~/.cache/forebay-tests; needs Java
	$(BIN)/python -m pytest -m kafka forebay_contrib tests/conformance $(ARGS)

brokers: $(STAMP) ## the other sources on their brokers, from Debian: mosquitto, RabbitMQ, nats-server, Redis, rsyslog; and pgbouncer
	$(BIN)/python -m pytest $(IN_PARALLEL) -m brokers forebay_contrib tests/conformance $(ARGS)

senders: $(STAMP) ## real senders: OpenTelemetry's SDKs and Collector, Fluent loggers, Telegraf, Promtail, Prometheus; npm, Go, Maven build them once
	$(BIN)/python -m pytest -m senders forebay_contrib $(ARGS)

namespaces: $(STAMP) ## three hosts as network namespaces, one cut off for 30 s and reconnected; needs root and Go
	$(BIN)/python -m pytest -m namespaces tests/namespaces $(ARGS)

stress: $(STAMP) ## two owners per receiver, kills, racing allocations, clean-up, then an independent checker; MINUTES=3
	$(BIN)/python -m tests.stress.driver_log --minutes $(or $(MINUTES),3)

LAYOUT ?= one
chaos: $(STAMP) ## faults by seed on a whole system, then an independent oracle: MINUTES=10 SEED=1 LAYOUT=one, or two
	@$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) --layout $(LAYOUT) $(ARGS)

fuzz: $(STAMP) ## search for bytes that break a parser, for MINUTES=5 [SEED=1]; what it finds goes into tests/fuzz/corpus
	FOREBAY_FUZZ_MINUTES=$(or $(MINUTES),5) FOREBAY_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal tests/fuzz $(ARGS)

# Types on one core, the rest on another.
check: $(STAMP) ## run ruff, mypy, import-linter, and Dagster's own validation of the code location
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check-types check-rules

check-types: $(STAMP)
	$(BIN)/mypy

check-rules: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-cache
	env -u DAGSTER_HOME FOREBAY_MODULE=forebay.demo.pipeline $(BIN)/dagster definitions validate -w workspace.yaml

# Its exit code 3 says that nothing is wrong, but that known vulnerabilities could not be checked.
audit: $(STAMP) ## hashes and sources in uv.lock, bundled Java and Postgres with their dates, known vulnerabilities
	@$(BIN)/python -m release.audit $(ARGS) || [ $$? -eq 3 ]

wheel-demo: $(STAMP) ## build the wheel and run its demo in an empty environment, without Java, Postgres and uv
	@PATH="$(CURDIR)/$(UV_VENV)/bin:$$PATH" .ci/wheel-demo $(BIN)/python

# In an environment of its own: a stranger's package, beside Forebay's wheel.
examples: $(STAMP) ## install each example of a source or sink as a package of its own, and run the conformance suite on it
	@PATH="$(CURDIR)/$(UV_VENV)/bin:$$PATH" .ci/examples $(BIN)/python

clean: ## remove environments, caches and build results; your data in .forebay stays
	rm -rf $(VENV) .venv-* $(UV_VENV) dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find benchmarks examples forebay forebay_contrib migrations orchestration receiver_runtime release tests tracker_store -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml uv.lock $(ANOTHER_PYTHON)
	@set -eu; \
	python=; \
	for candidate in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14); do \
	  if found=$$("$$candidate" -c 'import sys; print(sys.executable); sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null); then \
	    python=$$found; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "Forebay needs Python 3.11 to 3.14; $(if $(PYTHON),$(PYTHON) is another or can't be run,there is none on PATH). Install one, or: make PYTHON=/path/to/python3" >&2; \
	  exit 1; \
	fi; \
	is_uv='import re, subprocess, sys; said = subprocess.check_output([sys.argv[1], "--version"], text=True); sys.exit(tuple(map(int, re.findall("[0-9]+", said)[:2])) < (0, 8))'; \
	uv=; \
	for candidate in uv "$(CURDIR)/$(UV_VENV)/bin/uv"; do \
	  if "$$python" -c "$$is_uv" "$$candidate" 2>/dev/null; then uv=$$candidate; break; fi; \
	done; \
	if [ -z "$$uv" ]; then \
	  echo "There is no uv: installing it into $(UV_VENV)."; \
	  "$$python" -m venv --clear $(UV_VENV) || { \
	    echo "Python's venv module is incomplete: install it (Debian, Ubuntu: apt install python3-venv), or uv itself." >&2; exit 1; }; \
	  $(UV_VENV)/bin/python -m pip --disable-pip-version-check install --quiet 'uv>=0.8,<1'; \
	  uv="$(CURDIR)/$(UV_VENV)/bin/uv"; \
	fi; \
	UV_PYTHON_DOWNLOADS=never UV_PROJECT_ENVIRONMENT="$(abspath $(VENV))" \
	  "$$uv" sync --locked --compile-bytecode --python "$$python"; \
	touch $(STAMP)
