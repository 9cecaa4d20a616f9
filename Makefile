# make setup   a virtual environment in .venv with the versions of constraints.txt; keeps an installed torch
# make test    setup, then linters, type checks and all tests that are not slow
# make test-all   the same with slow tests
# make lint    setup, then linters and type checks
# make coverage   the same tests as make test; which lines they run: a table, and pages in build/coverage
# make demo    setup, then a comparison of three small models on a synthetic corpus; SEED=2 for other data and weights
# make tables  the tables on the pages, by the commands in the comments above them; CHECK=--check only reports whether
#              they are up to date
# make figures    the figures in results/, from the records
# make clean   remove the environment and caches

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt

.PHONY: setup demo test test-all coverage lint tables figures clean
.DELETE_ON_ERROR:

setup: $(VENV)/ready

# An installed torch is kept, whatever constraints.txt says: GPUs may need another build (docs/install.md).
# The order matters: torch first, or its default build would be pulled in by others; fairseq without its dependencies,
# whose old pins cannot be installed, and in an isolated build, because it must not see torch while it is built.
$(VENV)/ready: setup.py pyproject.toml constraints.txt fairseq_modern/fairseq_modern.pth
	@[ -x $(BIN)/python ] || $(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 13) \
	    else "Python 3.10 to 3.13 is needed, but $(PYTHON) is %d.%d; name another one: make $(MAKECMDGOALS) PYTHON=…" % v)'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip     # uv; Debian without python3-venv
	@torch=$$($(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' 2>/dev/null); \
	    sed "s/^torch==.*/$${torch:-&}/" constraints.txt >$(VENV)/constraints.txt
	$(PIP) torch
	$(PIP) "hydra-core>=1.3.2,<1.4" "omegaconf>=2.3,<2.4" "numpy>=1.26"
	$(PIP) --no-cache-dir --no-deps fairseq==0.12.2     # a wheel in the cache may be compiled for another NumPy
	$(PIP) --editable ".[test,plots,reparam,slurm,huggingface,serve]"
	$(BIN)/python -c "import fairseq.data.data_utils_fast, collab_fairseq.models"
	@touch $@

demo: setup
	@PYTHON="$(abspath $(BIN))/python" recipes/demo/run.sh $(if $(SEED),--seed "$(SEED)")

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict --follow-imports silent collab_fairseq/attention
	$(BIN)/mypy

PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

test: lint
	$(PYTEST) -m "not slow"
	@echo "left out, run by make test-all: the slow tests of $$(grep -rlE 'mark\.slow' tests | sort | tr '\n' ' ')"

test-all: lint
	$(PYTEST)

coverage: setup
	$(PIP) pytest-cov
	$(PYTEST) -m "not slow" --cov --cov-report term:skip-covered --cov-report html

COLLAB = $(BIN)/collab
STUDY = @$(BIN)/python -m recipes
RUNS := results/runs

tables:
	@$(COLLAB) tables README.md docs/*.md recipes/*/*.md $(CHECK)

figures:
	@$(COLLAB:collab=python) docs/idea.py
	@$(COLLAB) table $(RUNS)/multi30k-none-dk128-s?-u4000.json $(RUNS)/multi30k-*-dk32-s?-u4000.json \
	    $(RUNS)/multi30k-*-blocks-s?-u4000.json $(RUNS)/multi30k-*-blocks8-s?-u4000.json \
	    --figure results/multi30k-table.svg --x updates --group-by heads,key_dim
	@$(COLLAB) table $(RUNS)/multi30k-none-s1-u2500.json $(RUNS)/multi30k-*-dk[13]?-s1-u2500.json \
	    --figure results/multi30k-curves.svg --x updates
	@$(COLLAB) table results/published/wmt14_en_de-*.json --figure results/wmt14-parameters.svg --x parameters --y compound_split
	@$(COLLAB) table results/published/wmt14_en_de-*.json --figure results/wmt14-time.svg --x wall_time --y compound_split
	$(STUDY) curve figures cost $(RUNS)/curve_check-*-u2000.json $(RUNS)/curve-*-dk[136]?-*-u2000.json \
	    results/published/wmt14_en_de-*.json --figure results/curve.svg
	$(STUDY) curve figures training $(RUNS)/curve-*-u5500.json $(RUNS)/curve_check-*-u2000.json \
	    $(RUNS)/curve-none-dk32-lr4-s?-u2000.json $(RUNS)/curve-encoder_cross_decoder-dk32-blocks8_lr4-s?-u2000.json \
	    --figure results/convergence.svg
	$(STUDY) heads figures $(foreach what,redundancy importance ablate prune prune-raw roles,results/heads/*.$(what).json)
	$(STUDY) heads figures --pdf $(wildcard results/glue/*.*.json)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
