# make demo   set everything up and run the demo
# make test   set everything up, check types and style, run the tests
# make test-browser   tests of the page in Debian's Chromium, which is installed where it is missing
# make bench  the benchmarks that run on a CPU (minutes)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: setup demo test test-browser chromium lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: setup
	$(BIN)/fixstar demo

test: lint
	$(BIN)/pytest -n 2 --ignore=tests/browser

# screenshots stay under build/screenshots
test-browser: setup chromium
	$(BIN)/pytest tests/browser

chromium:
	@if [ -n "$$FIXSTAR_CHROMIUM" ] || command -v chromium >/dev/null; then exit 0; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get update && apt-get install -y --no-install-recommends chromium; \
	else echo "chromium is missing: install it (apt-get install chromium), or set FIXSTAR_CHROMIUM to its path" >&2; exit 1; fi

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python benchmarks/simplex_head.py --out benchmarks/results/simplex_head_cpu.json

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
