# `make demo` and `make test` do all the set-up on a machine with Python 3.10+.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One thread a process: results on CPU then do not depend on the number of cores, and tests do not fight for them.
# Tests run in two processes, a file each at a time: some hold temporary states for the whole file.
export OMP_NUM_THREADS ?= 1
# Packages whose docstrings `make docs` shows; the command line documents itself (`robustzoo --help`).
DOCUMENTED := robustzoo $(addprefix robustzoo.,attacks cards data diagnostics evaluation hub leaderboard models objectives \
  registry reports studies training verification)

.PHONY: demo test test-slow verify-cards lint docs wheel clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "robustzoo needs Python 3.10 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	@echo "installing robustzoo and its dependencies into $(VENV), once: minutes, and some GB to download"
	$(BIN)/pip install -e '.[train,dev]'
	touch $@

demo: $(VENV)/.installed
	$(BIN)/python -m robustzoo.cli.demo

test: $(VENV)/.installed
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow"

test-slow: $(VENV)/.installed
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -q -m slow $(TESTS)

verify-cards: $(VENV)/.installed
	$(BIN)/robustzoo verify --all --mode replay

lint: $(VENV)/.installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The reference of the Python interface, from the docstrings.
docs: $(VENV)/.installed
	rm -rf build/docs
	$(BIN)/python -m pdoc --docformat google --output-directory build/docs $(DOCUMENTED)

# Builds the wheel, installs it in a clean environment away from the sources, and loads every bundled model.
wheel: $(VENV)/.installed
	rm -rf dist build/wheel-check
	$(BIN)/python -m build --quiet --wheel
	$(PYTHON) -m venv build/wheel-check
	build/wheel-check/bin/pip install --quiet dist/*.whl
	cd build/wheel-check && bin/python -I $(abspath tests)/check_wheel.py

clean:
	rm -rf $(VENV) dist build
