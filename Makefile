# The two commands:  make serve   make test
# Everything else is a step of these, or a shorthand.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Where `make serve` keeps its database: beside the clone, so that a fresh clone starts fresh. Root's PostgreSQL runs as
# another user, who may not be able to enter the clone (/root is 0700): a directory of the clone's own elsewhere then.
export FENCEPOST_DATA_DIR ?= $(shell \
  if [ "$$(id -u)" = 0 ] && ! setpriv --reuid=65534 --regid=65534 --clear-groups test -x "$(CURDIR)/." 2>/dev/null; \
  then echo "/var/lib/fencepost/clone-$$(echo "$(CURDIR)" | cksum | cut -d' ' -f1)"; \
  else echo "$(CURDIR)/.fencepost"; fi)

# Where it is set each Python process compiles the packages anew: 3 s instead of 1 s for a gateway, and tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install install-dev serve demo-reset test test-all torture-mutants test-servers check lint units audit format model bench lock clean

help:
	@echo "make serve            run the gateway on an embedded PostgreSQL, with two demo tables"
	@echo "make demo-reset       take that PostgreSQL's data away: the next make serve begins anew"
	@echo "make test             run the tests (five minutes on two cores); names what it leaves to test-all"
	@echo "make test-all         run all tests that this machine can run (twenty minutes on two cores); names what it could not"
	@echo "make torture-mutants  let torture find each planted bug (docs/torture.md)"
	@echo "make check            format, lint, imports, types, known vulnerabilities, unit tests, Dockerfile"
	@echo "make test-servers     as root on Debian: install the servers that tests use (PostgreSQL, Redis, etcd, Kafka, …), and SPIN"
	@echo "make model            check the formal model of the protocol with SPIN (docs/model.md); under two minutes"
	@echo "make bench            measure against others, and plot it (see benchmarks/); a quarter of an hour"
	@echo "make install          set up .venv only"
	@echo "make lock             resolve the dependencies anew"

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Fencepost needs Python 3.11 or newer: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "No venv module: apt-get install python3-venv"; rm -rf $(VENV); exit 1; }

# uv installs in seconds what takes pip a minute. pip does it where its settings name an index, which uv would not ask, and where
# uv cannot. Neither compiles: all cores do, afterwards; what no Python can read, no import asks for.
UV  := $(BIN)/uv pip install --quiet --python $(BIN)/python
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
INSTALL = @echo "Installing: $(1)"; $$(cat $(VENV)/.installer) $(1) || { echo "Once more, with pip:"; $(PIP) $(1); }
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

$(VENV)/.installer: requirements-uv.txt | $(BIN)/python
	@if $(BIN)/pip config list | grep -q index; then echo "$(PIP)"; \
	elif $(PIP) --only-binary :all: --require-hashes -r requirements-uv.txt >&2; then echo "$(UV)"; \
	else echo "$(PIP)"; fi > $@.new && mv $@.new $@

$(VENV)/.installed: requirements.txt pyproject.toml | $(VENV)/.installer
	$(call INSTALL,--require-hashes -r requirements.txt)
	$(call INSTALL,--no-build-isolation --no-deps -e .)
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(call INSTALL,--require-hashes -r requirements-dev.txt)
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev requirements-bench.txt
	$(call INSTALL,--require-hashes -r requirements-bench.txt)
	@$(COMPILE)
	@touch $@

serve: install
	@exec $(BIN)/fencepost serve --demo

demo-reset:
	@if kill -0 "$$(head -n 1 "$(FENCEPOST_DATA_DIR)/pgdata/postmaster.pid" 2>/dev/null)" 2>/dev/null; then echo "It is in use: end make serve first."; exit 1; fi
	@rm -rf "$(FENCEPOST_DATA_DIR)/pgdata" && echo "make serve begins with a new database."

check: install-dev
	@$(MAKE) --no-print-directory -j2 --output-sync=line lint units

lint: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/shellcheck .ci/run .ci/test-servers .ci/kube-apiserver .ci/kafka-jars benchmarks/setup model/run
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml
	$(BIN)/python -m tools.audit
	@$(BIN)/python -m tools.shape

units: install-dev
	$(BIN)/python -m tools.run_tests -q tests/unit

audit: install-dev
	$(BIN)/python -m tools.audit

format: install-dev
	$(BIN)/python -m tools.problems_page
	$(BIN)/python -m tools.checks_page
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# One worker more than cores: tests wait for locks and for processes.
PYTEST := $(BIN)/python -m tools.run_tests -n $$(($$(nproc) + 1)) --dist worksteal

test: install-dev
	$(PYTEST) $(PYTEST_ARGS)

test-all: install-dev
	$(PYTEST) --all $(PYTEST_ARGS)

# Each bug of docs/torture.md: bounded runs have to find it, and find nothing in the product. `make test-all` has six.
torture-mutants: install-dev
	$(PYTEST) tests/torture/test_planted_bugs.py $(PYTEST_ARGS)

# Every scene as the rules have it, and each part of a rule switched off. Needs spin and a C compiler (make test-servers).
model: install-dev
	$(BIN)/python -m model

# PostgreSQL, Chromium, Redis, etcd, ZooKeeper with a JRE, Kafka's jars, SPIN. Installed, never started by themselves: policy-rc.d answers 101
# while apt runs. Kubernetes has no package: .ci/kube-apiserver builds it from its Go modules, in about ten minutes.
test-servers:
	@[ "$$(id -u)" = 0 ] || { echo "make test-servers needs root: it runs apt-get install"; exit 1; }
	.ci/test-servers

# Minutes, on a machine that does nothing else. What cannot be had here is named, and its cells are left out.
bench: $(VENV)/.installed-bench
	benchmarks/setup
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.plot benchmarks/results/latest.json benchmarks/results/latest.png
	$(BIN)/python -m benchmarks.leases
	$(BIN)/python -m benchmarks.sources
	$(BIN)/python -m benchmarks.queues

# Universal: one file for every platform and Python; hashes, and no registry's name.
lock: install-dev
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	  --extra embedded --extra sources --extra kafka --group build pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	  --extra testing --group dev -c requirements.txt pyproject.toml -o requirements-dev.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	  --group bench -c requirements-dev.txt -o requirements-bench.txt
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --quiet \
	  --group install -c requirements-dev.txt -o requirements-uv.txt

clean:
	rm -rf $(VENV) .not-audited .fencepost dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
