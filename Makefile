# Everything runs from a virtual environment that make builds; nothing else is needed
# than python3 with venv, and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WORKERS ?= 2

.PHONY: demo test test-all lint format bench reproduce wheel clean

demo: $(INSTALLED)
	$(BIN)/python examples/demo.py

test: $(INSTALLED)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup -m "not slow"

test-all: $(INSTALLED)
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# make bench [ONLY=name] [QUICK=1]
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(if $(QUICK),--quick)

# make reproduce [ONLY=name [PART=table]] [QUICK=1] [JOBS=cells at a time]
reproduce: $(INSTALLED)
	$(BIN)/python -m experiments $(if $(ONLY),--only $(ONLY)) $(if $(PART),--part $(PART)) $(if $(QUICK),--quick)

wheel: $(INSTALLED)
	$(BIN)/python -m build --wheel --no-isolation

$(INSTALLED): pyproject.toml constraints.txt
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
