# Everything runs in an environment of its own: .venv (change it with VENV=...).
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 7860
FUZZ_SECONDS ?= 60
PYTEST_ARGS ?= -n auto --dist loadfile

# The allocator is compiled where there is a C compiler; a change of its sources installs anew.
COMPILED := hatch_build.py $(wildcard shared/trainmem/allocator/compiled/*.[ch])

.PHONY: demo test check bench fuzz install install-space clean

# The app alone: no torch.
$(VENV)/.space: pyproject.toml constraints.txt $(COMPILED)
	@echo "setting up $(VENV) for the app: about a minute, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[space]'
	touch $@

# Everything that the tests need. torch first, by its pin, so that pip takes one build of it.
$(VENV)/.dev: pyproject.toml constraints.txt $(COMPILED)
	@echo "setting up $(VENV) for every test, torch included: a few minutes, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[space,backend]' --group dev
	touch $@ $(VENV)/.space

install-space: $(VENV)/.space
install: $(VENV)/.dev

demo: $(VENV)/.space
	@echo "starting the app, which says the address to open when it is ready"
	@$(BIN)/trainmem space --host 127.0.0.1 --port $(PORT)

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.dev
	$(BIN)/python -m bench

fuzz: $(VENV)/.dev
	$(BIN)/python -m pytest tests/fuzz --fuzz-seconds=$(FUZZ_SECONDS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist build
