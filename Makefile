# Two commands matter: `make train` and `make test`. Each sets itself up on a machine that has Python 3.11+.
.DEFAULT_GOAL := help
.PHONY: help train demo docs test test-slow attack test-lowest lint clean

# The first interpreter that really runs and is new enough (a pyenv shim may exist and still refuse to run).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "tailsafe needs Python 3.11 or newer; none was found (set PYTHON=/path/to/python)" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "'$(PYTHON) -m venv' failed; on Debian and Ubuntu install python3-venv" >&2; exit 2; }
	@echo "installing tailsafe into $(VENV) (once, about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

# Another seed: make train SEED=1.
SEED ?= 0
RUN := $(if $(filter 0,$(SEED)),runs/point-goal,runs/point-goal-$(SEED))

train: $(READY)  ## train point-goal under a limit on its worst quarter, draw it, and prove that the policy keeps the limit
	@mkdir -p runs
	@if [ -e $(RUN)/config.json ]; then $(BIN)/tailsafe resume $(RUN); \
	else $(BIN)/tailsafe train point-goal --risk cvar:0.75 --limit 0.025/step --preset laptop --seed $(SEED) --out $(RUN); fi
	$(BIN)/tailsafe evaluate $(RUN) --episodes 500
	$(BIN)/tailsafe plot $(RUN)
	$(BIN)/tailsafe render $(RUN) --map --episodes 4
	@$(BIN)/tailsafe certify $(RUN) --limit 0.025/step --episodes 4000 --plot $(RUN)/certificate.png || test $$? -eq 1  # 1: not proven, and it says why

demo: $(READY)  ## solve the tabular demo problem, prove how close to optimal it is, draw it
	@mkdir -p runs
	$(BIN)/tailsafe tabular examples/two_roads.json --risk cvar:0.75 --limit 2 --compare --plot runs/two_roads.png

docs: $(READY)  ## build the documentation site into site/, warnings are errors; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

test: $(READY) lint  ## the whole suite, style and types included
	$(BIN)/python -m pytest -m "not slow"

test-slow: $(READY)  ## the tests that take minutes, those on a Ray cluster of this machine, and those with Brax and gymnax
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,ray,jax-envs]'
	$(BIN)/python -m pytest -m slow

attack: $(READY)  ## seeded damage to every file of a run, and a grammar of bad arguments; counts what was found
	$(BIN)/python -m pytest -n 0 -m slow tests/attack

test-lowest: pyproject.toml  ## the suite on the lowest versions that pyproject.toml allows
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e '.[test]'
	.venv-lowest/bin/python -m pytest -m "not slow"

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:  ## remove what the commands above made
	rm -rf .venv .venv-lowest site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
