# `make demo` and `make test` set up everything they need on a fresh machine.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-all check format floors bench pictures readme docs dist try-dist clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "making $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "installing PyTorch and the rest into $(VENV); this takes some minutes once ..."
	$(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile -c constraints.txt -e ".[dev]"
	touch $@

demo: setup
	$(BIN)/superopt search rmsnorm-linear
	$(BIN)/superopt verify examples/rmsnorm_linear.py:naive examples/rmsnorm_linear.py:delayed \
		--inputs "f32[16,256] f32[256] f32[256,384]"
	mkdir -p demo
	$(BIN)/superopt optimize rmsnorm-linear --size M=16 K=1024 N=1024 --dtype f32 --seconds 8 \
		-o demo/result.json || test $$? -eq 1
	@echo "the report, for a browser:"
	@$(BIN)/superopt report demo/result.json
	@echo
	@echo "next: source $(BIN)/activate, and then"
	@echo "  superopt list                                    the named workloads"
	@echo "  superopt optimize file.py:function --inputs ...  your own function; see README.md"

test: setup
	$(BIN)/python -m pytest -q -n auto -m "not slow"

test-all: setup
	$(BIN)/python -m pytest -q -n auto

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Ratios that must hold, each to a baseline in the same run: no absolute time counts.
floors: setup
	$(BIN)/superopt bench run floors

bench: setup
	$(BIN)/superopt bench run search --json bench/results/search.json
	$(BIN)/superopt bench run frontier --json bench/results/frontier.json
	$(BIN)/superopt bench run cpu --minutes 30 --json bench/results/cpu.json

pictures: setup
	$(BIN)/superopt bench plot bench/results/cpu.json bench/results/search.json bench/results/frontier.json \
		-o bench/results/pictures

readme: setup
	$(BIN)/python tests/test_readme.py

docs: setup
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs build/site
	@echo "the site: build/site/index.html"

dist: setup
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

# The wheel in an environment that has never seen the repository: installed, run, and deleted.
try-dist: dist
	sh tests/try_dist.sh $(PYTHON) dist/*.whl
	sh tests/try_dist.sh $(PYTHON) dist/*.tar.gz

clean:
	rm -rf $(VENV) build dist demo *.egg-info
