# There is one way to do each thing, and this is the list of them. Every target sets up what it needs, in a virtual environment
# beside the checkout, so that `git clean` cannot lose it and two clones can share it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help
.SUFFIXES:

VENV   ?= $(abspath ../anabranch-venv)
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
JOBS   ?= $(shell nproc 2>/dev/null || echo 2)
SEEDS  ?= 200
FROM   ?= 0
SEED   ?=
BUG    ?=

# The source is used in place and not installed: a .pth file in a shared environment would point every clone at the same checkout.
export PYTHONPATH := $(CURDIR)/proto:$(CURDIR)/node:$(CURDIR)
export PYTHONHASHSEED := 0

PY    := $(VENV)/bin/python
STAGE := @.ci/stage
# Named after the lock file's content: a changed lock installs again, an unchanged one costs nothing.
STAMP := $(VENV)/.installed-dev-$(shell cksum < requirements/dev.txt | tr -c '0-9\n' '-')
# What a node needs and no more, for `make run`. The pins of both files agree, so the two share one environment.
NODE_STAMP := $(VENV)/.installed-node-$(shell cksum < requirements/node.txt | tr -c '0-9\n' '-')

.PHONY: help
help: ## show this list
	@echo "usage: make TARGET [VARIABLE=value]"
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile
	@echo "environment: $(VENV) (VENV=...), processes: $(JOBS) (JOBS=...)"

NODES ?= 3
PORT  ?= 4437
DATA  ?= ./anabranch-data
MINUTES ?= 5
SECONDS_OF_LOAD ?= 60

.PHONY: run
run: $(NODE_STAMP) ## a durable local cluster with one command: NODES=3 PORT=4437 DATA=./anabranch-data; Ctrl-C stops it, the data stays
	@exec $(PY) -m anabranch_node.main dev --nodes $(NODES) --port $(PORT) --data $(DATA)

.PHONY: test
test: $(STAMP) ## everything below in its short form: unit, 300 simulation seeds, planted bugs, conformance, real clients, chaos, overload
	$(STAGE) unit 400 $(PY) -m pytest -q -n $(JOBS)
	$(STAGE) sim 400 $(PY) -m tests.sim.run --seeds 300 --from 0 --jobs $(JOBS)
	$(STAGE) planted 240 $(PY) -m tests.planted.run --short
	$(STAGE) conformance 400 $(PY) -m tests.conformance.run
	$(STAGE) extensions 240 $(PY) -m tests.conformance.extensions.run
	$(STAGE) clients 240 $(PY) -m tests.clients.run
	$(STAGE) chaos 240 $(PY) -m tests.process.chaos --seconds 60
	$(STAGE) limits 120 $(PY) -m tests.process.limits
	$(STAGE) overload 240 $(PY) -m tests.process.overload --seconds 10

.PHONY: lint
lint: $(STAMP) ## ruff, formatting, strict types, import contracts; runs all of them, then fails if one did
	@code=0; \
	.ci/stage ruff 60 $(PY) -m ruff check --output-format concise . || code=1; \
	.ci/stage format 60 $(PY) -m ruff format --check --output-format concise . || code=1; \
	.ci/stage types 180 $(PY) -m mypy || code=1; \
	.ci/stage imports 60 $(VENV)/bin/lint-imports --no-logo || code=1; \
	exit $$code

.PHONY: sim
sim: $(STAMP) ## simulate a cluster under faults: SEEDS=200 FROM=0; SEED=7 replays one seed with a readable trace
	@$(PY) -m tests.sim.run $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --from $(FROM) --jobs $(JOBS))

.PHONY: sim-bugs
sim-bugs: $(STAMP) ## plant each known bug and show that the simulator finds it: BUG=name for one
	@$(PY) -m tests.planted.run $(if $(BUG),--bug "$(BUG)")

.PHONY: scripts
scripts: $(STAMP) ## run the readable Raft scripts; REWRITE=1 writes their expected parts anew, to be read as a diff
	@$(PY) -m $(if $(REWRITE),tests.scripts.rewrite,pytest -q tests/unit/test_raft_scripts.py)

.PHONY: conformance
conformance: $(STAMP) ## the public protocol suite against one node, and against three through a connection spreader; then our own of the extensions
	@$(PY) -m tests.conformance.run
	@$(PY) -m tests.conformance.extensions.run

.PHONY: chaos
chaos: $(STAMP) ## three real nodes killed, paused and cut off under load, and the history judged: MINUTES=5 SEED=7
	@$(PY) -m tests.process.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

.PHONY: overload
overload: $(STAMP) ## ten times the load that a real cluster can serve, thousands of readers and slow clients, and back: SECONDS_OF_LOAD=60
	@$(PY) -m tests.process.limits
	@$(PY) -m tests.process.overload --seconds $(SECONDS_OF_LOAD)

.PHONY: bench
bench: $(STAMP) ## measure core, log and host; the service next to other servers; the memory of 100,000 idle streams
	@$(PY) -m tests.bench.run
	@$(PY) -m tests.bench.http_bench
	@$(PY) -m tests.bench.extension_bench
	@$(PY) -m tests.bench.memory

.PHONY: clients
clients: $(STAMP) ## npm, PyPI and curl clients against three real nodes whose leader is killed: nothing lost, nothing twice
	$(STAGE) clients 240 $(PY) -m tests.clients.run

.PHONY: generate
generate: $(STAMP) ## write what is made from the code: proto/anabranch_proto/peer_pb2.py, docs/{config,metrics,protocol}.md
	@$(PY) proto/generate.py
	@$(PY) -m anabranch_node.main config-reference > docs/config.md
	@$(PY) -m anabranch_node.drivers.telemetry > docs/metrics.md
	@$(PY) -m tests.tidy.protocol_page

.PHONY: venv
venv: $(STAMP) ## only set up the virtual environment

$(STAMP):
	@$(call install,dev)

$(NODE_STAMP):
	@$(call install,node)

define install
test -n "$(PYTHON)" || { echo "Anabranch needs Python 3.11 or newer on the PATH; set PYTHON=/path/to/python3.11" >&2; exit 1; }; \
start=$$SECONDS; \
if ! "$(PY)" -c 'import pip' 2>/dev/null; then \
	echo "making $(VENV) with $$($(PYTHON) --version)"; \
	$(PYTHON) -m venv --clear "$(VENV)"; \
fi; \
echo "installing $$(grep -c '==' requirements/$(1).txt) pinned packages into $(VENV)"; \
rm -f "$(VENV)"/.installed-$(1)-*; \
"$(PY)" -m pip install --quiet --progress-bar on --disable-pip-version-check --no-compile --no-deps --require-hashes -r requirements/$(1).txt; \
touch "$@"; \
echo "environment ready in $$((SECONDS - start)) s"
endef

# Existing pins are kept where they still fit; UPGRADE=1 takes the newest of everything. Shared packages have one version in all files.
LOCK := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--custom-compile-command "make lock" $(if $(UPGRADE),--upgrade) pyproject.toml

.PHONY: lock
lock: $(STAMP) ## write requirements/*.txt again from pyproject.toml: UPGRADE=1 for the newest versions
	@"$(PY)" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	$(LOCK) --extra node --extra dev -o requirements/dev.txt
	$(LOCK) --extra node -c requirements/dev.txt -o requirements/node.txt
	$(LOCK) --extra operator -c requirements/dev.txt -o requirements/operator.txt
	$(LOCK) --extra spark -c requirements/dev.txt -o requirements/spark.txt
	$(LOCK) --extra lock -o requirements/lock.txt

.PHONY: clean
clean: ## remove caches from the checkout; the environment beside it stays
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	@find . -path ./.git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "cleaned; to start from nothing, also delete $(VENV)"
