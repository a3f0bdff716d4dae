# make study: all four sources on embedded data · make test: everything but make test-ray · make check: the quick half, before each commit
PYTHON ?= python3
BIN := .venv/bin
JOBS ?= 2
SEED ?= 0
# whole runs and pages wait for processes of their own and for the browser
WAITING ?= 3
# the tests start hundreds of processes: compiled once, not in each
export PYTHONDONTWRITEBYTECODE =
# and several of them compute at once: with two threads each they would wait for one another
test quick: export OMP_NUM_THREADS = 1

.PHONY: study test test-ray check types quick docs dist bench all-types notebook fix floors mutants clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[erase]'
	@touch $@

.venv/ready: .venv/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[annotate,erase,hub,notebook,ray,test]'
	@touch $@

study: .venv/installed
	$(BIN)/trisect dissect --out study

test: .venv/ready
	$(BIN)/ruff check src tests tools bench
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit tests/property tests/golden
	$(BIN)/python -m pytest -n $(WAITING) --dist worksteal --jaxtyping-packages= tests/contract tests/browser

test-ray: .venv/ready
	$(BIN)/python -m pytest -m ray tests/contract

check: .venv/ready
	$(BIN)/ruff format --check src tests tools bench
	$(BIN)/ruff check src tests tools bench
	@$(MAKE) --no-print-directory --jobs=2 types quick

types: .venv/ready
	$(BIN)/pyright

quick: .venv/ready
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit tests/property tests/golden

docs: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python tools/docs.py
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/manual
	@echo "manual  build/manual/docs/index.html"

dist:
	$(PYTHON) tools/dist.py

bench: .venv/ready
	PYTHONPATH=. $(BIN)/python bench/table.py

all-types: .venv/ready
	PYTHONPATH=. OMP_NUM_THREADS=1 $(BIN)/python bench/all_types.py --place build/types

notebook: .venv/ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python tools/notebook.py

fix: .venv/ready
	$(BIN)/ruff check --fix src tests tools bench
	$(BIN)/ruff format src tests tools bench

floors:
	rm -rf build/floors
	$(PYTHON) -m venv build/floors
	build/floors/bin/pip install --quiet $$($(PYTHON) tools/floors.py)
	build/floors/bin/pip install --quiet --no-deps --editable .
	$(PYTHON) tools/floors.py build/floors/bin/trisect

mutants: .venv/ready
	nice -n 15 $(BIN)/python tools/mutants.py --seed $(SEED)

clean:
	rm -rf .venv build dist study
