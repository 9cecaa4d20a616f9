# make setup   a virtual environment in .venv with everything, versions of constraints.txt; a torch that is in it stays
# make test    setup, then lint, types and the tests that are not slow
# make test-all   the same with the slow ones
# make demo    setup, then three small models on a generated corpus, compared; SEED=2 for another corpus and training
# make clean   remove what the two made

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt

.PHONY: setup demo test test-all lint clean
.DELETE_ON_ERROR:

setup: $(VENV)/ready

# A torch that is there stays, whatever constraints.txt says: cards may need another (docs/install.md).
# The order matters: torch first, or its default build would be pulled in by others; fairseq without its dependencies,
# whose old pins cannot be installed any more, and in an isolated build, since it must not see torch while it is built.
$(VENV)/ready: setup.py pyproject.toml constraints.txt fairseq_modern/fairseq_modern.pth
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 10) <= v <= (3, 13) else \
	    "Python 3.10 to 3.13 is needed, but $(PYTHON) is %d.%d; name another one: make $(MAKECMDGOALS) PYTHON=…" % v)'
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@torch=$$($(BIN)/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' 2>/dev/null); \
	    sed "s/^torch==.*/$${torch:-&}/" constraints.txt >$(VENV)/constraints.txt
	$(PIP) torch
	$(PIP) "hydra-core>=1.3.2,<1.4" "omegaconf>=2.3,<2.4" "numpy>=1.26"
	$(PIP) --no-deps fairseq==0.12.2
	$(PIP) --editable ".[test,plots,reparam,slurm,huggingface,serve]"
	$(BIN)/python -c "import fairseq, collab_fairseq.models"
	@touch $@

demo: setup
	@recipes/demo/run.sh --python "$(abspath $(BIN))/python" $(if $(SEED),--seed "$(SEED)")

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy --strict --follow-imports silent collab_fairseq/attention
	$(BIN)/mypy

PYTEST = $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile

test: lint
	$(PYTEST) -m "not slow"
	@echo "left out, run by make test-all: the slow tests of $$(grep -rlE 'mark\.slow' tests | sort | tr '\n' ' ')"

test-all: lint
	$(PYTEST)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
