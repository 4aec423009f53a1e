# Everything a person or a machine types. Each target makes what it needs: a venv, the installation, nothing outside this folder.
#
#   make demo    a scripted agent with misbehaving tools, judged twice     (seconds; under two minutes on a fresh clone)
#   make check   what to run while working: ruff, mypy, the quick tests of the gate   (under a minute)
#   make test    ruff, mypy --strict, all tests, the coverage gate                    (under ten minutes)
#   make soak    the longer forms of some tests, and figures that they print; PART=operation: one of its parts
#   make bench   ours, the public edictum 0.19.0 and a hand-written guard, in one run
#   make frameworks   the adapters in the real frameworks, in venvs of their own; LATEST=1: newest releases; LOWEST=1: first supported; ONLY=name: one
#   make sizes   how many bytes sessions and calls take in each store
#   make service    a web service with one agent for many users, on port 8000 (examples/web_service); PORT=9000 PROCESSES=4
#   make walk    how far one call walks: function activations, files, changes of package
#   make metrics sizes, names and words of src, next to the bounds that a test holds
#   make lint    ruff and mypy only
#   make clean   remove what the targets above made

PYTHON ?= python3

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# The demo needs little; it uses the development venv only when that is there already.
DEMO_VENV := $(if $(wildcard $(INSTALLED)),$(VENV),.venvs/demo)
DEMO_INSTALLED := $(DEMO_VENV)/.installed

PIP_INSTALL := -m pip install --quiet --disable-pip-version-check

# Bytecode is kept in this folder, even where the environment switches it off: hundreds of tests start
# an interpreter of their own, and each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.build/bytecode

# Made for two cores. Much of `make test` waits, for servers, leases and deadlines: there, two workers
# share a core. WORKERS=8 is for a larger machine.
check soak: WORKERS ?= 2
test test-rest: WORKERS ?= 4
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# The long forms, one part after the other; PART=operation runs one.
PART ?= operation sessions gate contracts sandbox harness audit approval web_service mcp_proxy_typescript
SOAK_BOUND := 2h
CHECKED := tests/core tests/gate tests/contracts tests/audit tests/approval

.DEFAULT_GOAL := help
.PHONY: help demo service check test collect test-rest test-light soak frameworks bench sizes walk metrics lint clean

help:
	@sed -n 's/^#   //p' Makefile

demo: $(DEMO_INSTALLED)
	@$(DEMO_VENV)/bin/python examples/demo/demo.py

service: PORT ?= 8000
service: PROCESSES ?= 2
service: .venvs/service/.installed
	@.venvs/service/bin/python examples/web_service/run.py --port $(PORT) --workers $(PROCESSES)

check: lint
	@echo "== pytest, without what is slow or needs a server"
	@$(PYTEST) -m 'not slow' -k 'not postgres and not valkey' $(CHECKED)

test:
	@$(MAKE) --no-print-directory -j 2 lint collect
	@rm -f .coverage .coverage.*
	@echo "== pytest, with coverage"
	@$(PYTEST) --part traced --cov --cov-report=
	@echo "== coverage: every branch of core/, outcomes.py and success.py"
	@$(BIN)/coverage report --fail-under=100 --show-missing --skip-covered
	@$(MAKE) --no-print-directory -j 2 test-rest test-light

# Compiles the tests, beside mypy, which uses one core: else every worker compiles them for itself.
collect: $(INSTALLED)
	@mkdir -p .build
	@$(BIN)/python -m pytest -n 0 --collect-only > .build/collected.txt 2>&1 \
		|| { cat .build/collected.txt; exit 1; }

test-rest:
	@echo "== pytest, all other tests"
	@$(PYTEST) --part rest

# Beside the others, because it is one process; what it says is shown when it has ended.
test-light:
	@mkdir -p .build
	@$(PYTHON) frameworks/run.py --light > .build/light.txt 2>&1; code=$$?; \
		echo; echo "== adapters in the frameworks that are quick to start"; cat .build/light.txt; exit $$code

soak: $(INSTALLED)
	@set -e; for part in $(PART); do \
		echo "== soak: $$part, within $(SOAK_BOUND)"; \
		if test -f tests/adapters/test_$$part.py; \
		then EDICTUM_SOAK=1 timeout -s INT $(SOAK_BOUND) $(PYTHON) frameworks/run.py --only $$part; \
		else EDICTUM_SOAK=1 timeout -s INT $(SOAK_BOUND) $(PYTEST) -m soak -rP --show-capture=stdout --durations=5 tests/$$part; \
		fi; \
	done

lint: $(INSTALLED)
	@echo "== ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo "Not formatted; run: $(BIN)/ruff format ."; exit 1; }
	@echo "== mypy --strict"
	@$(BIN)/mypy

frameworks:
	@$(PYTHON) frameworks/run.py $(if $(LATEST),--latest) $(if $(LOWEST),--lowest) $(if $(ONLY),--only $(ONLY))

bench: $(INSTALLED)
	@$(BIN)/python benchmarks/bench.py

sizes: $(INSTALLED)
	@$(BIN)/python benchmarks/sizes.py

walk: $(INSTALLED)
	@$(BIN)/python benchmarks/walk.py

metrics: $(INSTALLED)
	@$(BIN)/python benchmarks/metrics.py

clean:
	rm -rf $(VENV) .venvs .build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: EXTRAS := dev
.venvs/demo/.installed: EXTRAS := demo,yaml,harness
.venvs/service/.installed: EXTRAS := yaml,redis
.venvs/service/.installed: MORE := --requirement examples/web_service/requirements.txt
.venvs/service/.installed: examples/web_service/requirements.txt
$(VENV)/.installed .venvs/demo/.installed .venvs/service/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("edictum needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	@echo "== installing edictum[$(EXTRAS)] into $(@D)"
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) --editable '.[$(EXTRAS)]' $(MORE)
	@touch $@
