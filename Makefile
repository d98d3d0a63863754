# make demo           install what the demo needs, and run it
# make test           install the rest, check types and style, run the tests
# make lint           types and style alone
# make pytest         the tests alone
# make test-long      more of what make test has tried already: seeds, faults, kills, methods, pages, examples; and the connectors (minutes)
# make coverage       the tests, and how much of the package they run; below the floor in pyproject.toml it fails
# make test-core      the tests that need no extra, where no extra is installed
# make test-stores    tests of Chroma collections and LanceDB tables, in an environment of their own that has both packages
# make test-lowest    the same with the lowest versions that pyproject.toml allows (constraints-lowest.txt)
# make api-diff       what the public API lost since the last release
# make test-milvus    the tests of Milvus with a real server, from a wheel for x86-64 Linux; elsewhere they are skipped
# make test-browser   tests of the page in Chromium, which is installed where it is missing
# make docs           the documentation, in build/site; a broken link or an undocumented name fails
# make package        wheel and sdist in dist/, each installed into an empty environment, where the demo runs
# make fire           long trials: flipped bytes, kills, power cuts, random operations and requests, harmful images, floods, load (hours)
#                     all of it, but little: make fire TRIALS=5 KILL_STEP=7 KILLS=2 FAULTS=4 CUTS=3 OPERATIONS=100 POSTGRES_OPERATIONS=20 FUZZ=32 BOMBS=6 LOAD_SECONDS=10
# make bench          the benchmarks that run on a CPU (minutes)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
CORE   := $(VENV)/.core
DOCS   := $(VENV)/.docs
DEV    := $(VENV)/.installed
MILVUS := $(VENV)/.milvus
DEPENDENCIES := pyproject.toml constraints.txt
PACKAGES ?= dist/*.whl dist/*.tar.gz
# of make fire: how much of each trial
TRIALS ?= 500
KILL_STEP ?= 1
KILLS ?= 100
FAULTS ?= 400
CUTS ?= 200
OPERATIONS ?= 200000
POSTGRES_OPERATIONS ?= 2000
FUZZ ?= 1000
BOMBS ?= 58
LOAD_SECONDS ?= 60

# what runs without an extra; scikit-learn is what some figures are compared with
TEST_TOOLS := pytest pytest-xdist hypothesis scikit-learn
STORE_TESTS := tests/gallery/test_foreign.py tests/translation/test_migrate.py
CORE_TESTS := tests/data tests/evaluation tests/images tests/losses tests/methods tests/training tests/translation tests/workspace

# the browser's tests have a target of their own; the connectors' libraries take seconds to import, in each process
APART := --ignore=tests/browser --ignore=tests/connectors --ignore=src/fixstar/connectors

MILVUS_TESTS := tests/gallery/test_milvus.py tests/gallery/test_gallery_contract.py tests/translation/test_migrate.py \
	tests/service/test_rolling_deploy.py -k milvus

.PHONY: setup demo test pytest test-long coverage test-core test-stores test-lowest test-milvus milvus test-browser chromium lint style types api-diff docs package fire bench clean

setup: $(DEV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(CORE): $(DEPENDENCIES) | $(BIN)/python
	$(PIP) -e .
	touch $(CORE)

$(DOCS): $(DEPENDENCIES) | $(BIN)/python
	$(PIP) -e ".[docs]"
	touch $(CORE) $(DOCS)

$(DEV): $(DEPENDENCIES) | $(BIN)/python
	$(PIP) -e ".[dev]"
	touch $(CORE) $(DOCS) $(DEV)

demo: $(CORE)
	$(BIN)/fixstar demo

# types are checked beside the tests: without mypy's cache that takes minutes on one core
test: style
	$(MAKE) --jobs=2 types pytest

pytest: setup
	$(BIN)/pytest -n 4 $(APART) -m "not long"

test-long: setup
	$(BIN)/pytest -n 2 -m long --ignore=tests/browser --ignore=tests/connectors tests
	$(BIN)/pytest tests/connectors

coverage: setup
	$(BIN)/pytest -n 4 --ignore=tests/browser --cov --cov-report=term:skip-covered

test-core:
	$(PYTHON) -m venv --clear build/core
	build/core/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e . $(TEST_TOOLS)
	build/core/bin/pytest -n 2 $(CORE_TESTS)

test-stores:
	$(PYTHON) -m venv --clear build/stores
	build/stores/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[chroma,lancedb]" $(TEST_TOOLS)
	build/stores/bin/pytest -n 2 -rs $(STORE_TESTS) -k "chroma or lancedb"

test-lowest:
	$(PYTHON) -m venv --clear build/lowest
	build/lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e . $(TEST_TOOLS)
	build/lowest/bin/pytest -n 2 $(CORE_TESTS)

# a server from a wheel, which the tests share; in make test they would take longer than all others together
test-milvus: milvus
	$(BIN)/python tests/support/milvus_server.py $(BIN)/pytest -n 4 -rs $(MILVUS_TESTS)

milvus: $(MILVUS)

$(MILVUS): $(DEV)
	$(PIP) -e ".[milvus]" "milvus==2.3.5; platform_machine == 'x86_64' and sys_platform == 'linux'"
	touch $(MILVUS)

# screenshots stay under build/screenshots
test-browser: setup chromium
	$(BIN)/pytest tests/browser

chromium:
	@if [ -n "$$FIXSTAR_CHROMIUM" ] || command -v chromium >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update && apt-get install -y --no-install-recommends chromium; \
	else echo "chromium is missing: install it (apt-get install chromium), or set FIXSTAR_CHROMIUM to its path" >&2; exit 1; fi

lint: style types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

api-diff: $(DOCS)
	$(BIN)/python .ci/api_diff.py

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

package: $(CORE)
	$(PIP) build
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist
	@for package in $(PACKAGES); do \
		echo "$$package in an empty environment"; \
		rm -rf build/empty && $(PYTHON) -m venv build/empty && \
		build/empty/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$package" && \
		(cd build/empty && PYTHONPATH= bin/fixstar doctor && PYTHONPATH= bin/fixstar demo --json --out demo >demo.json) || exit 1; \
	done
	rm -rf build/empty

fire: setup
	FIXSTAR_TRIALS=$(TRIALS) $(BIN)/pytest -n 0 -s tests/workspace/test_corruption.py
	FIXSTAR_KILL_STEP=$(KILL_STEP) $(BIN)/pytest -n 0 -s tests/workspace/test_snapshot.py -k killed
	$(BIN)/python tests/gallery/killing.py --kills $(KILLS)
	$(BIN)/python tests/gallery/disk_faults.py --trials $(FAULTS)
	$(BIN)/python tests/gallery/server_faults.py --trials $(FAULTS)
	FIXSTAR_CUTS=$(CUTS) $(BIN)/pytest -n 0 -s tests/workspace/test_power_cut.py
	$(BIN)/python tests/support/workspace_model.py --operations $(OPERATIONS)
	$(BIN)/python tests/support/workspace_model.py --operations $(POSTGRES_OPERATIONS) --postgres
	FIXSTAR_FUZZ=$(FUZZ) $(BIN)/pytest -n 0 tests/service/test_openapi.py
	$(BIN)/python benchmarks/upload_bombs.py --bombs $(BOMBS)
	$(BIN)/python benchmarks/request_floods.py
	$(BIN)/python benchmarks/service_load.py --seconds $(LOAD_SECONDS)

bench: setup
	$(BIN)/python benchmarks/simplex_head.py --out benchmarks/results/simplex_head_cpu.json

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
