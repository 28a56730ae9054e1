# Two commands for a newcomer: `make run` and `make test`. Both need only Python 3.11+, pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORES := $(shell nproc 2>/dev/null || echo 2)
# Twice as many as the cores of a small machine, because tests with programs wait a lot, and one for what only computes meanwhile;
# as many as the cores of a larger one.
WORKERS ?= $(shell echo $$(($(CORES) < 4 ? 5 : $(CORES) > 8 ? 8 : $(CORES))))
# Tests without programs wait little, most of it for pipes and disks, and every worker spends seconds on collecting.
QUICK_WORKERS ?= $(shell echo $$(($(CORES) < 2 ? 3 : $(CORES) > 7 ? 8 : $(CORES) + 1)))

# Compiled modules are kept: the tests start hundreds of gateways.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test quick check format lint types contract tests peers demo bench bench-tasks gate bench-replicas bench-console mutants faults fuzz pause chaos conformance conformance-replicas conversations clients servers interaction screenshots lock clean

help:
	@echo "make run     start the gateway with the bundled demo server"
	@echo "make test    every check: format, lint, types, import contract, docs, every test, every branch of core/ by its own tests"
	@echo "make quick   the same checks and every test that starts no program; for every save"
	@echo "make coverage  how much of everything the tests reach, by file (tracing makes them about half as fast)"
	@echo "make mutants sabotage one line of safety or security at a time, and see a test notice each"
	@echo "make demo    one fast call, one slow call, one approval and one question, explained"
	@echo "make bench   compare with a direct connection and with other proxies"
	@echo "make bench-tasks  durable tasks, alone and under a mixed load, beside a bare SQLite file"
	@echo "make bench-console  every page with 10,000 tasks, open consoles, and how soon a change is on screen, beside controls"
	@echo "make chaos   the long crash tests; make fuzz: 100,000 mutated frames each way"
	@echo "make retention  ten minutes (MINUTES=10) of new tasks at the highest rate on each store, and whether what is past its time keeps going"
	@echo "make takeover  processor time of a restart with 10,000 open tasks, and of taking over as many from a gateway that died"
	@echo "make plans   what every statement reads in stores with 100,000 tasks and a million audit rows"
	@echo "make pause   how long anything that a peer sends can hold the gateway up, as a table"
	@echo "make conversations  every SDK with every server on every transport; make test has every third of them"
	@echo "make clients the SDKs, the Inspector and agent frameworks through the gateway, as a table"
	@echo "make servers published servers, directly and through the gateway, as a table"
	@echo "make extensions  MCP Apps and skills with published servers and hosts, directly and through the gateway"
	@echo "make package build wheel and sdist, install each in a clean environment on every Python found, and try it"
	@echo "make container  build the image with podman, run it read-only, and ask it for its tools"
	@echo "make interaction  the Python SDK's own interaction tests, directly and through the gateway"
	@echo "make gate    whether the usual calls became more than a tenth dearer than the kept baseline"
	@echo "make chaos-replicas  300 faults of three gateways on PostgreSQL; make chaos-sabotage: its judge before broken builds"
	@echo "make conformance-replicas  the official suite through three gateways on PostgreSQL behind a balancer"
	@echo "make screenshots  pictures of every page of the console (needs Chromium)"
	@echo "make faults  every way in which a server over HTTP or stdio can fail, beside a ledger of what really ran"

# --no-deps: the lock names everything, and pip must not resolve an extra such as coverage[toml] to a release newer than it.
$(STAMP): requirements/runtime.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Not quiet: on a slow line a newcomer should see that something is going on.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

run: $(VENV)/.runtime
	$(BIN)/taskgate serve

# Pictures of every page of the console, wide and narrow, light and dark, into build/screenshots.
screenshots: $(STAMP)
	$(BIN)/python -m tests.console.pictures build/screenshots

demo: $(VENV)/.runtime
	$(BIN)/taskgate demo

# What is quick to say no comes first. Types and the tests of core/ use what the tests with programs leave of the processors; what
# they say is shown when they are over. The documentation is built by a test of its own (tests/docs/test_site.py).
test: $(STAMP) peers
	$(MAKE) --no-print-directory format lint contract
	$(MAKE) --no-print-directory --jobs=2 BESIDE="types core" beside tests

.PHONY: beside
beside: $(STAMP)
	@mkdir -p build
	@nice -n 3 $(MAKE) --no-print-directory --jobs=1 $(BESIDE) > build/beside.log 2>&1; code=$$?; cat build/beside.log; exit $$code

check: types docs contract lint format

format: $(STAMP)
	$(BIN)/ruff format --check --quiet src tests tools examples

lint: $(STAMP)
	$(BIN)/ruff check --quiet src tests tools examples

types: $(STAMP)
	$(BIN)/mypy

contract: $(STAMP)
	$(BIN)/lint-imports --no-logo 2>&1 | tail -n 15

peers: $(STAMP)
	$(BIN)/python tools/peers.py

# The tests of core/ must cover every branch of it by themselves. The others are not traced.
.PHONY: core
core: $(STAMP)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run --source=taskgate.core -m pytest -n 2 tests/core
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python tools/coverage_gate.py core

tests: $(STAMP) peers
	$(BIN)/python -m pytest -n $(WORKERS) --durations=10 -m "not long" --ignore=tests/core

.PHONY: coverage
coverage: $(STAMP) peers
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) -m "not long"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --skip-empty --sort=cover | tail -n 40
	$(BIN)/python tools/coverage_gate.py overall

# Everything that runs in the tests' own process, most of it in virtual time.
quick: $(STAMP)
	$(MAKE) --no-print-directory format lint contract
	$(MAKE) --no-print-directory --jobs=2 BESIDE="types docs" beside tests-without-programs

.PHONY: tests-without-programs
tests-without-programs: $(STAMP)
	$(BIN)/python -m pytest -n $(QUICK_WORKERS) -m "not long and not starts_programs"

conformance: $(STAMP) peers
	$(BIN)/python -m tests.conformance.run
	$(BIN)/python -m pytest -n 2 tests/conformance/test_client_scenarios.py

conformance-replicas: $(STAMP) peers
	$(BIN)/python -m tests.conformance.run --replicas

# Real clients and agent frameworks through the gateway; installs what only this needs.
clients: $(STAMP)
	$(BIN)/python tools/peers.py --clients
	$(BIN)/python -m tests.clients.run

servers: $(STAMP)
	$(BIN)/python tools/peers.py --clients
	$(BIN)/python -m tests.servers.run

# Everything that make test has one run of.
.PHONY: extensions
extensions: $(STAMP) peers
	$(BIN)/python -m pytest -n $(WORKERS) tests/extensions/test_published_apps.py tests/extensions/test_published_skills.py

interaction: $(STAMP)
	$(BIN)/python tools/peers.py --only interaction23
	$(BIN)/python -m tests.sdk_interaction.run

conversations: $(STAMP) peers
	$(BIN)/python -m pytest -n $(WORKERS) tests/conversations tests/activity tests/scopes tests/governance/test_real_clients.py

# The wheel and the sdist in clean environments, on every Python that can be found here.
package: $(STAMP)
	$(BIN)/python tools/try_package.py

# The image, built and run with podman; says what is absent.
.PHONY: container
container:
	$(PYTHON) tools/try_container.py

bench: $(STAMP) peers
	$(BIN)/python -m tests.benchmarks.relay

# Durable creates at 1,000/s with 10,000 open, alone and in a mixed load, beside a bare SQLite file on the same disk.
bench-tasks: $(STAMP)
	$(BIN)/python -m tests.benchmarks.tasks
	$(BIN)/python -m tests.benchmarks.mixed

gate: $(STAMP)
	$(BIN)/python -m tests.benchmarks.gate

# What the console costs: pages with 10,000 tasks, open consoles, and how soon a change is on screen.
bench-console: $(STAMP)
	$(BIN)/python -m tests.benchmarks.console

bench-replicas: $(STAMP)
	$(BIN)/python -m tests.benchmarks.replicas
	$(BIN)/python -m tests.benchmarks.forwarding

.PHONY: chaos-replicas chaos-sabotage
# Three gateways on PostgreSQL under 300 faults of every kind and load, judged by the ledger of the server behind them. It takes
# some 45 minutes on two quiet cores; TASKGATE_CHAOS_MINUTES ends it sooner, with its verdict.
chaos-replicas: $(STAMP)
	TASKGATE_CHAOS_FAULTS=$${TASKGATE_CHAOS_FAULTS:-300} $(BIN)/python -m pytest -q -s -n 0 -m "not long" tests/replicas/test_chaos.py

# The same judge before broken builds: it must find what each does wrong.
chaos-sabotage: $(STAMP)
	$(BIN)/python -m pytest -q -n 0 -m long tests/replicas/test_chaos.py

chaos: $(STAMP)
	$(BIN)/python -m pytest -m long tests/chaos

# Whether what is past its time is forgotten as fast as new tasks can be made: MINUTES on each store, beside a control.
MINUTES ?= 10
.PHONY: retention
retention: $(STAMP)
	$(BIN)/python -m tests.benchmarks.retention --minutes $(MINUTES)

# Processor time of a start with ten thousand open tasks, and of taking over ten thousand tasks of a gateway that died.
.PHONY: takeover
takeover: $(STAMP)
	$(BIN)/python -m tests.benchmarks.takeover

# Every statement of both stores, with 100,000 tasks, 1,000,000 rows of the audit log and 100,000 events.
.PHONY: plans
plans: $(STAMP)
	$(BIN)/python -m pytest -n 0 -m long tests/store/test_query_plans.py

pause: $(STAMP)
	$(BIN)/python -m tests.pause.table
	$(BIN)/python -m pytest -n 2 -m long tests/seam/test_large_results.py tests/seam/test_large_requests.py

faults: $(STAMP)
	$(BIN)/python -m tests.faults.run

mutants: $(STAMP)
	$(BIN)/python -m tests.mutants.run

fuzz: $(STAMP)
	$(BIN)/python -m tests.chaos.fuzz

# The documentation as a site, in build/site; a link that leads nowhere is an error.
.PHONY: docs
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock:
	uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml --group dev -o requirements/dev.txt

clean:
	rm -rf $(VENV) .peers .coverage* build dist
