# Two commands: `make run` starts a standalone broker, `make test` passes all tests; both set up what they need.
#: The Python of the environment; empty: the best one of PATH (bench/components/choose_python.py).
PYTHON ?=
#: The environment: `make unit PYTHON=python3.13 VENV=.venv-3.13` tests another Python in one of its own.
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
#: The release of Apache Kafka that tests run, one of bench/components/fetch.py; empty: its default.
export KAFKA
#: Where `make run` serves metrics; METRICS= for none.
METRICS ?= http://127.0.0.1:9404
SEEDS ?= 500
#: Where `make site` writes.
SITE ?= site

# Python keeps what it has compiled, in any environment: else pytest rewrites 5,000 asserts in each worker of each run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run setup setup-test setup-bench test check lint types unit fuzz sim crash compat oracle spark bench-smoke bench figures site lock messages clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

run: setup ## a standalone broker on 127.0.0.1:9092 with its data in ./data, its remote tier in ./data-tier
	@exec $(BIN)/ottla broker --data-dir data --tier data-tier $(if $(METRICS),--set metrics.listeners=$(METRICS)) $(ARGS)

setup: $(VENV)/.run ## the broker's environment, from requirements/run.lock
setup-test: $(VENV)/.test ## the tests' environment, from requirements/test.lock
setup-bench: $(VENV)/.bench ## `ottla bench` and its Spark, from requirements/bench.lock

$(VENV)/bin/python:
	@python=$$($(or $(PYTHON),python3) bench/components/choose_python.py $(if $(PYTHON),--this)) && "$$python" -m venv $(VENV)

$(VENV)/.run: requirements/run.lock pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/run.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.test: requirements/test.lock $(VENV)/.run
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/test.lock
	@touch $@

$(VENV)/.bench: requirements/bench.lock bench/components/spark-jars.sha256 $(VENV)/.test
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bench.lock
	$(BIN)/python -m ottla.bench.components.fetch java spark
	@touch $@

$(VENV)/.fuzz: requirements/fuzz.lock $(VENV)/.test
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/fuzz.lock
	@touch $@

test: check sim compat oracle spark ## everything: checks, simulations, then real clients and real Kafka

check: setup-test lint types unit ## lint, types, import direction, unit and scenario tests (a few minutes)

lint: setup-test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: setup-test
	$(BIN)/mypy

unit: setup-test
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/unit tests/scenario $(ARGS)

fuzz: $(VENV)/.fuzz ## look for bytes that no reader expects, a minute for each; ARGS="--seconds 600 NAME..."
	$(BIN)/python -m tests.fuzz $(ARGS)

CRASHES := tests/unit/storage/test_crash_stories.py tests/unit/storage/test_crash_flips.py tests/unit/storage/test_crash_kill.py

sim: setup-test ## quorums, whole nodes and crashes on virtual time; SEEDS=... for so many more of each story
	OTTLA_SIM_SEEDS=$(if $(filter file,$(origin SEEDS)),0,$(SEEDS)) OTTLA_CRASH_SEEDS=24 OTTLA_CRASH_KILLS=3 \
		$(BIN)/python -m pytest -q -n 2 tests/sim $(CRASHES) $(ARGS)

crash: setup-test ## power cuts, flipped bits and kills with SEEDS seeds each, failing disks with half as many (check: 8, 1 kill; sim: 24, 3)
	OTTLA_CRASH_SEEDS=$(SEEDS) OTTLA_CRASH_KILLS=$(SEEDS) $(BIN)/python -m pytest -q -n 2 --timeout 600 $(CRASHES) $(ARGS)

# The tests of a file stay together, with the processes that they start; the longest files come first (conftest.py).
BY_FILE := --dist loadfile --no-loadscope-reorder

# Three at a time on two cores: these tests wait for processes as long as they compute.
compat: setup-test ## real processes: clients of every kind, hostile input, Apache Kafka as oracle
	$(BIN)/python -m ottla.bench.components.fetch
	$(BIN)/python -m pytest -q -n 3 $(BY_FILE) tests/hostile tests/compat $(ARGS)

oracle: setup-test ## tests/compat against Apache Kafka itself, the oracle of each test; KAFKA=4.3.1|4.4.0 (4.3.1)
	$(BIN)/python -m ottla.bench.components.fetch
	KAFKA_ORACLE=1 $(BIN)/python -m pytest -q -n 3 $(BY_FILE) tests/compat $(ARGS)

spark: setup-bench ## what runs on Spark: generators, aggregation, reports in a browser, Spark's Kafka connector, ottla-tier
	$(BIN)/python -m ottla.bench.components.fetch java kafka minio chromium axe
	$(BIN)/python -m pytest -q -n 2 $(BY_FILE) tests/spark $(ARGS)

bench-smoke: setup-bench ## `ottla bench run` on tiny loads, Ottla and Kafka; every record is counted (make spark runs it, too)
	$(BIN)/python -m ottla.bench.components.fetch java kafka
	$(BIN)/python -m pytest -q tests/spark/test_bench_smoke.py $(ARGS)

bench: setup-test ## side by side with Apache Kafka on this machine; the report goes to bench/results
	$(BIN)/python -m ottla.bench.components.fetch
	$(BIN)/python -m ottla.bench.compare $(ARGS)

figures: setup-test ## write README's tables from the latest results in bench/results
	$(BIN)/python -m ottla.bench.readme

site: setup ## the stories of tests/scenario as a static site, in SITE (./site)
	$(BIN)/ottla docs build $(SITE)

lock: setup-test ## pin the requirements again, by version and hash
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url requirements/run.in -o requirements/run.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url requirements/test.in -o requirements/test.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url requirements/bench.in -o requirements/bench.lock
	$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url requirements/fuzz.in -o requirements/fuzz.lock

messages: setup-test ## generate protocol/messages from kio's schemas, and from those of the newest Kafka's jars
	$(BIN)/python -m ottla.bench.components.kafka_schemas
	$(BIN)/python -m ottla.protocol.generate

clean: ## remove the environment and caches (never data)
	rm -rf $(VENV) .fuzz build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
