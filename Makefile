# `make help` lists the targets. They need Python 3.11 or newer, pip and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CORES := $(shell nproc 2>/dev/null || echo 2)
# On a small machine more workers than cores, because tests with programs mostly wait; on a larger one as many as cores.
WORKERS ?= $(shell echo $$(($(CORES) < 4 ? 4 : $(CORES) > 8 ? 8 : $(CORES))))
# Tests in the test process use a core each.
IN_PROCESS_WORKERS ?= $(shell echo $$(($(CORES) > 8 ? 8 : $(CORES))))
# Tests without programs wait little, and every worker spends seconds on collecting.
QUICK_WORKERS ?= $(shell echo $$(($(CORES) < 2 ? 3 : $(CORES) > 7 ? 8 : $(CORES) + 1)))

# Keep compiled modules: the tests start hundreds of gateways.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-programs quick check format lint types contract tests peers demo bench bench-tasks gate bench-replicas bench-console mutants faults fuzz pause chaos conformance conformance-replicas conversations clients servers interaction screenshots lock clean

define HELP
Run
  make run                   start the gateway with the demo server
  make demo                  four examples: a fast call, a slow call, an approval and a question

Check
  make quick                 format, lint, types, import contract, docs, and the tests that start no program; for every save
  make test                  the static checks, branch coverage of core/, and the tests that start no program
  make test-programs         the tests with real clients and servers, the browser and PostgreSQL, and those with much data
  make check                 the static checks alone: types of source, tests and tools; docs, import contract, lint, format
  make docs                  build the documentation in build/site; a broken link is an error
  make coverage              coverage of all tests, by file (about twice as slow as make test)
  make mutants               remove one guard of safety or security at a time; a test must fail for each
  make faults                every way in which a server can fail, compared with a record of what ran
  make fuzz                  100,000 mutated frames in each direction
  make config-equality       read generated configuration files with this version and with BASE=COMMIT, and compare
  make decision-equality     decide generated calls with this version and with BASE=COMMIT, and compare
  make properties            every property of tests/ with 400 generated inputs instead of the 10 of make test
  make chaos                 the long crash tests of one gateway
  make chaos-scripts         a crash at every write of a script, in virtual time and by SIGKILL
  make chaos-replicas        300 faults of three gateways on PostgreSQL; make chaos-sabotage: the same checker with broken builds
  make scripts-cost          CPU of a call in a script beside a durable call, and of 1,000 scripts that wait over a restart
  make scripts-hostile       what becomes of each hostile script, the pause that others see, and what steps cost
  make history               CPU time of every filter and chart with 200,000 rows of history, on both databases
  make links                 links of every kind on every page of the console with 10,000 tasks, as four people
  make pages-with-much-data  every page of the console in Chromium with 200,000 rows of history: size, barriers
  make plans                 the rows that every statement reads, with 100,000 tasks and a million audit rows

Measure
  make gate                  fail if frequent operations take over a tenth more function calls than the stored baseline
  make bench                 a call, compared with a direct connection and other proxies
  make bench-floor           CPU time and instructions of a call, compared with a bare relay of the same bytes
  make bench-growth          CPU and memory with up to 10,000 tools, 1,000 servers, 5,000 rules and a full store
  make bench-peers           Taskgate and other relays under the same load; writes docs/compare.md
  make bench-start           CPU seconds of commands and of the gateway until they answer, compared with bare Python
  make bench-tasks           durable tasks, alone and under a mixed load, compared with a bare SQLite file
  make bench-console         every page with 10,000 tasks, and open consoles
  make bench-replicas        several gateways on PostgreSQL
  make little-cpu            whether a gateway with 5 % of a CPU refuses calls, and when late calls are refused in a model
  make pause                 the longest time that any input of a peer blocks the gateway
  make retention             new tasks at the highest rate for ten minutes (MINUTES=10), and whether expired data is deleted as fast
  make retention-beside-calls  what deleting expired results costs plain calls, in alternating rounds of one process
  make soak                  memory, files and disk under 60 minutes of mixed load (SOAK="--minutes 10")
  make takeover              CPU time of a restart with, and of taking over, 10,000 open tasks

Real peers
  make conversations         every SDK with every server on every transport (make test-programs runs a third of them)
  make conformance           the official suite, directly and through the gateway
  make conformance-replicas  the official suite through three gateways behind a balancer
  make interaction           the Python SDK's own interaction tests, directly and through the gateway
  make clients               SDKs, the Inspector and agent frameworks as clients, as a table
  make servers               published servers, directly and through the gateway, as a table
  make extensions            MCP Apps and skills with published servers and hosts
  make screenshots           pictures of every page of the console (needs Chromium)

Release
  make package               build wheel and sdist, install each in a clean environment on every Python found, and try it
  make container             build the image with podman, run it read-only, and list its tools
  make lock                  resolve the dependencies again (needs uv)
  make clean                 delete the environment, peers and build output
endef
export HELP

help:
	@echo "$$HELP"

# --no-deps: the lock names everything, and pip must not resolve an extra such as coverage[toml] to a release newer than it.
$(STAMP): requirements/runtime.txt requirements/dev.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

# Not quiet: on a slow connection a newcomer should see the progress.
$(VENV)/.runtime: requirements/runtime.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps --require-hashes -r requirements/runtime.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

run: $(VENV)/.runtime
	$(BIN)/taskgate serve

# Every page of the console, wide and narrow, light and dark, in build/screenshots.
screenshots: $(STAMP)
	$(BIN)/python -m tests.console.pictures build/screenshots

demo: $(VENV)/.runtime
	$(BIN)/taskgate demo

# What a contributor runs before a commit: it needs nothing but Python. The quick checks come first. Types and the tests of core/ run
# beside the other tests, and their output is printed when they finish.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs=2 format lint contract build/compiled
	$(MAKE) --no-print-directory --jobs=2 BESIDE="types-all core" beside tests-in-process

# The peers are checked once: what is absent is looked for on the network.
test-programs: $(STAMP) peers
	$(MAKE) --no-print-directory --jobs=2 PEERS_CHECKED=1 BESIDE="tests-with-much-data" beside tests-with-programs

# Folders with large messages, many callers, hostile input and every failure of a server: a fifth of the time of the tests without
# programs.
MUCH_DATA := tests/load tests/pause tests/faults

# Compile changed modules once: the workers begin at the same time, and each would compile all of them. pytest compiles test files
# when it collects them; collecting those that did not change would take 20 seconds of CPU time.
build/compiled: $(STAMP) $(shell find src tests -name '*.py' 2>/dev/null)
	@mkdir -p build
	@$(BIN)/python -m compileall -q src > build/compiled.log 2>&1 || true
	@$(if $(call changed_tests,$?),$(BIN)/python -m pytest --collect-only -n 0 $(call changed_tests,$?) >> build/compiled.log 2>&1 || true)
	@touch $@

# The test files among some files.
changed_tests = $(foreach file,$(1),$(if $(findstring /test_,$(file)),$(file)))

# Two at a time, because one alone leaves a core idle whenever the tests with programs wait. Their priority is low, so that the tests
# in the foreground, which take longest, get a core whenever they need one.
.PHONY: beside
beside: $(STAMP)
	@mkdir -p build
	@nice -n 10 $(MAKE) --no-print-directory --keep-going --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(BESIDE) > build/beside-$(firstword $(BESIDE)).log 2>&1; code=$$?; cat build/beside-$(firstword $(BESIDE)).log; exit $$code

check: types-all docs contract lint format

format: $(STAMP)
	$(BIN)/ruff format --check --quiet src tests tools examples

lint: $(STAMP)
	$(BIN)/ruff check --quiet src tests tools examples

# The source alone, in seconds; types-all adds tests, tools and examples, and takes minutes without a cache.
types: $(STAMP)
	$(BIN)/mypy src

.PHONY: types-all
types-all: $(STAMP)
	$(BIN)/mypy

contract: $(STAMP)
	@mkdir -p build
	@$(BIN)/lint-imports --no-logo > build/contract.log 2>&1; code=$$?; tail -n 30 build/contract.log; exit $$code

peers: $(STAMP)
	$(BIN)/python tools/peers.py

# The tests of core/ must cover every branch of core/. The other tests run without coverage.
.PHONY: core
core: $(STAMP)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run --source=taskgate.core -m pytest -n 0 tests/core
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python tools/coverage_gate.py core

.PHONY: tests-with-programs tests-in-process tests-with-much-data
tests-with-programs: $(STAMP) $(if $(PEERS_CHECKED),,peers)
	$(BIN)/python -m pytest -n $(WORKERS) --durations=10 -m "not long" --programs=only --ignore=tests/core

tests-in-process: $(STAMP)
	$(BIN)/python -m pytest -n $(IN_PROCESS_WORKERS) --durations=10 -m "not long" --programs=none --ignore=tests/core $(addprefix --ignore=,$(MUCH_DATA))

tests-with-much-data: $(STAMP)
	$(BIN)/python -m pytest -n $(IN_PROCESS_WORKERS) --durations=10 -m "not long" --programs=none $(MUCH_DATA)

.PHONY: coverage
coverage: $(STAMP) peers
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) -m "not long"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --skip-empty --sort=cover | tail -n 40
	$(BIN)/python tools/coverage_gate.py overall

# Tests that run in the test process, most of them in virtual time.
quick: $(STAMP)
	$(MAKE) --no-print-directory format lint
	$(MAKE) --no-print-directory --jobs=2 BESIDE="contract types-all docs" beside tests-without-programs

.PHONY: tests-without-programs
tests-without-programs: $(STAMP)
	$(BIN)/python -m pytest -n $(QUICK_WORKERS) -m "not long and not starts_programs" $(addprefix --ignore=,$(MUCH_DATA))

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

# All runs; make test-programs has one of each.
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

# The image, built and run with podman; reports what is missing.
.PHONY: container
container:
	$(PYTHON) tools/try_container.py

bench: $(STAMP) peers
	$(BIN)/python -m tests.benchmarks.relay

# FLOOR=--callgrind counts instructions on a machine without a counter; it takes minutes.
.PHONY: bench-floor
bench-floor: $(STAMP)
	$(BIN)/python -m tests.benchmarks.floor $(FLOOR)

# A gateway with 5 % of a CPU refuses none of 10,000 calls; about nine minutes.
.PHONY: little-cpu
little-cpu: $(STAMP)
	$(BIN)/python -m tests.benchmarks.lateness
	$(BIN)/python -m tests.benchmarks.little_cpu --control

# Minutes for each group; GROWTH="--only tools,rules" runs some, GROWTH=--small the smaller cases.
.PHONY: bench-growth
bench-growth: $(STAMP)
	$(BIN)/python -m tests.benchmarks.growth $(GROWTH)

.PHONY: config-equality
config-equality: $(STAMP)
	$(BIN)/python -m tests.config_equality.compare $(BASE)

# Decisions of 1,000 generated configurations on 110,000 calls, by this version and by BASE=COMMIT.
.PHONY: decision-equality
decision-equality: $(STAMP)
	$(BIN)/python -m tests.decision_equality.compare $(BASE)

.PHONY: soak
soak: $(STAMP)
	$(BIN)/python -m tests.benchmarks.soak $(SOAK)

.PHONY: bench-peers
bench-peers: $(STAMP) peers
	$(BIN)/python -m tests.benchmarks.peers --write docs/compare.md

.PHONY: bench-start
bench-start: $(STAMP)
	$(BIN)/python -m tests.benchmarks.start

# Durable creates at 1,000/s with 10,000 open, alone and in a mixed load, beside a bare SQLite file on the same disk.
bench-tasks: $(STAMP)
	$(BIN)/python -m tests.benchmarks.tasks
	$(BIN)/python -m tests.benchmarks.mixed

gate: $(STAMP)
	$(BIN)/python -m tests.benchmarks.gate

# Cost of the console: pages with 10,000 tasks, open consoles, and the delay until a change is displayed.
bench-console: $(STAMP)
	$(BIN)/python -m tests.benchmarks.console

bench-replicas: $(STAMP)
	$(BIN)/python -m tests.benchmarks.replicas
	$(BIN)/python -m tests.benchmarks.forwarding

.PHONY: chaos-replicas chaos-sabotage
# Three gateways on PostgreSQL under 300 faults of every kind and load, compared with the execution record of the server. It takes
# about 45 minutes on two idle cores; TASKGATE_CHAOS_MINUTES ends it earlier, with a verdict.
chaos-replicas: $(STAMP)
	TASKGATE_CHAOS_FAULTS=$${TASKGATE_CHAOS_FAULTS:-300} $(BIN)/python -m pytest -q -s -n 0 -m "not long" tests/replicas/test_chaos.py

# The same checker with broken builds: it must detect each defect.
chaos-sabotage: $(STAMP)
	$(BIN)/python -m pytest -q -n 0 -m long tests/replicas/test_chaos.py

chaos: $(STAMP)
	$(BIN)/python -m pytest -m long tests/chaos

.PHONY: chaos-scripts
chaos-scripts: $(STAMP)
	$(BIN)/python -m pytest -q -m long tests/scripts tests/chaos/test_script_kills.py

# Whether expired data is deleted as fast as new tasks are created: MINUTES on each store, beside a control.
MINUTES ?= 10
.PHONY: retention
retention: $(STAMP)
	$(BIN)/python -m tests.benchmarks.retention --minutes $(MINUTES)

# What deleting expired results costs plain calls, in alternating rounds of one process.
.PHONY: retention-beside-calls
retention-beside-calls: $(STAMP)
	$(BIN)/python -m tests.benchmarks.retention_beside_calls

# CPU time of a start with ten thousand open tasks, and of taking over ten thousand tasks of a dead gateway.
.PHONY: takeover
takeover: $(STAMP)
	$(BIN)/python -m tests.benchmarks.takeover

# Every statement of both stores, with 100,000 tasks, 1,000,000 rows of the audit log and 100,000 events.
.PHONY: history
history: $(STAMP)
	$(BIN)/python -m pytest -n 0 -s -m long tests/store/test_history_numbers.py

.PHONY: links
links: $(STAMP)
	$(BIN)/python -m pytest -n 0 -s -m long tests/console/test_console_links.py

# Every page of the console in Chromium with 200,000 rows of history, 10,000 open tasks and a million audit rows.
.PHONY: pages-with-much-data
pages-with-much-data: $(STAMP) peers
	$(BIN)/python -m pytest -n 0 -s -m long tests/console/test_pages_with_much_data.py

.PHONY: plans
plans: $(STAMP)
	$(BIN)/python -m pytest -n 0 -m long tests/store/test_query_plans.py

# What scripts cost: a call of a script beside a durable call of a caller, and 1,000 scripts that wait over a restart.
.PHONY: scripts-cost
scripts-cost: $(STAMP)
	$(BIN)/python -m tests.scripts.call_cost
	$(BIN)/python -m tests.scripts.waiting_scripts

# Hostile scripts on the real interpreter, and the cost of steps.
.PHONY: scripts-hostile
scripts-hostile: $(STAMP)
	$(BIN)/python -m tests.scripts.hostile_table

pause: $(STAMP)
	$(BIN)/python -m tests.pause.table
	$(BIN)/python -m pytest -n 2 -m long tests/load/test_large_results.py tests/load/test_large_requests.py

# FAULTS="2026/http --every 15" runs a part.
faults: $(STAMP)
	$(BIN)/python -m tests.faults.run $(FAULTS)

mutants: $(STAMP)
	HYPOTHESIS_PROFILE=mutants $(BIN)/python -m tests.mutants.run

fuzz: $(STAMP)
	$(BIN)/python -m tests.chaos.fuzz

# 400 generated inputs for each property; make test has 10.
.PHONY: properties
properties: $(STAMP)
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -n $(IN_PROCESS_WORKERS) -m "hypothesis and not long" tests

# The documentation as a site, in build/site; a broken link is an error.
.PHONY: docs
docs: $(STAMP)
	$(BIN)/zensical build --strict

lock:
	uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml -o requirements/runtime.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml --extra postgres -o requirements/container.txt
	uv pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --python-version 3.11 pyproject.toml --group dev -o requirements/dev.txt

clean:
	rm -rf $(VENV) .peers .coverage* build dist
