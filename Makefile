# make setup   a virtual environment in .venv with the versions of constraints.txt; keeps an installed torch
# make test    setup, then linters, type checks and all tests that are not slow
# make test-all   the same with slow tests
# make demo    setup, then a comparison of three small models on a synthetic corpus; SEED=2 for other data and weights
# make tables  the tables between markers (<!-- NAME -->) on the pages, from the records; CHECK=--check only reports
#              whether they are up to date
# make figures    the figures in results/, from the records
# make clean   remove the environment and caches

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint $(VENV)/constraints.txt

.PHONY: setup demo test test-all lint tables figures clean
.DELETE_ON_ERROR:

setup: $(VENV)/ready

# An installed torch is kept, whatever constraints.txt says: GPUs may need another build (docs/install.md).
# The order matters: torch first, or its default build would be pulled in by others; fairseq without its dependencies,
# whose old pins cannot be installed, and in an isolated build, because it must not see torch while it is built.
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

COLLAB = $(BIN)/collab
TABLE = @$(COLLAB) table $(CHECK)
RUNS := results/runs
CURVE := $(RUNS)/curve-*-u2000.json
CHECKED := $(RUNS)/curve_check-*-u2000.json
AT_32 := $(RUNS)/curve-none-dk32-lr4-s?-u2000.json $(RUNS)/curve-encoder_cross_decoder-dk32-blocks8_lr4-s?-u2000.json
LONGER := $(RUNS)/curve-*-u5500.json
SELECTED := $(RUNS)/curve-none-dk256-scaled062_lr2-*-u5500.json $(RUNS)/curve-none-dk32-lr2-*-u5500.json \
    $(RUNS)/curve-encoder_cross_decoder-dk32-blocks8_lr2-*-u5500.json
PUBLISHED := results/published/wmt14_en_de-*.json
ANALYSES := redundancy importance ablate prune prune-raw roles

# $(COLLAB:collab=python): the Python next to it
tables:
	$(TABLE) $(SELECTED) --output README.md --marker results --group-by key_dim,heads \
	    --columns 'heads,key_dim,parameters,nll all tests,sacrebleu'
	$(TABLE) $(RUNS)/multi30k-*-u4000.json --output recipes/multi30k/README.md --marker table --group-by heads,key_dim \
	    --columns heads,key_dim,seeds,parameters,cache,valid_loss,sacrebleu,chrf \
	    --baseline multi30k-none-dk128-s1-u4000 --baseline multi30k-none-dk32-s1-u4000
	$(TABLE) $(RUNS)/multi30k-none-dk128-keys2-*-u4000.json $(RUNS)/multi30k-*-blocks8_values2-*-u4000.json \
	    --output recipes/multi30k/README.md --marker cache128 --group-by heads,key_dim \
	    --columns heads,key_dim,parameters,cache,valid_loss,sacrebleu,chrf --baseline multi30k-none-dk128-keys2-s1-u4000
	$(TABLE) $(RUNS)/multi30k-none-dk128-keys1-*-u4000.json $(RUNS)/multi30k-none-dk128-latent64-*-u4000.json \
	    $(RUNS)/multi30k-*-blocks8_values1-*-u4000.json --output recipes/multi30k/README.md --marker cache64 \
	    --group-by heads,key_dim --columns heads,key_dim,parameters,cache,valid_loss,sacrebleu,chrf \
	    --baseline multi30k-none-dk128-keys1-s1-u4000 --baseline multi30k-none-dk128-latent64-s1-u4000
	$(TABLE) $(RUNS)/multi30k-*-u800.json --output recipes/multi30k/README.md --marker mixing \
	    --group-by heads,key_dim --columns heads,key_dim,parameters,valid_loss,sacrebleu
	$(TABLE) $(RUNS)/multi30k-*-u2500.json --output recipes/multi30k/README.md --marker results \
	    --group-by heads,key_dim --baseline multi30k-none-s1-u2500
	$(TABLE) $(RUNS)/curve-*-s11-u600.json --output recipes/curve/rates.md --marker rates \
	    --group-by heads,key_dim,config.optimization.lr --columns heads,key_dim,config.optimization.lr,nll
	$(TABLE) $(CURVE) --output recipes/curve/README.md --marker results --group-by heads,key_dim \
	    --columns heads,key_dim,seeds,parameters,nll,sacrebleu,chrf++,ter --baseline curve-none-dk256-lr2-s1-u2000
	@$(COLLAB:collab=python) recipes/curve/claim.py 32 $(CURVE) --output recipes/curve/README.md --marker claim $(CHECK)
	$(TABLE) $(CURVE) $(CHECKED) --output recipes/curve/rates.md --marker check \
	    --group-by heads,key_dim,config.optimization.lr --baseline curve-none-dk256-lr4-s1-u2000 \
	    --columns 'heads,key_dim,config.optimization.lr,seeds,nll all tests,sacrebleu'
	$(TABLE) $(AT_32) --output recipes/curve/README.md --marker same_size --group-by heads,key_dim \
	    --columns 'heads,key_dim,seeds,parameters,nll all tests,sacrebleu' --baseline curve-none-dk32-lr4-s1-u2000
	@$(COLLAB:collab=python) recipes/curve/claim.py 32 $(CHECKED) $(RUNS)/curve-*-dk32-*-u2000.json \
	    --output recipes/curve/rates.md --marker check_claim $(CHECK)
	$(TABLE) $(LONGER) --output recipes/curve/convergence.md --marker runs \
	    --group-by heads,key_dim,config.optimization.lr \
	    --columns 'heads,key_dim,config.optimization.lr,seeds,parameters,nll valid,nll all tests,sacrebleu'
	$(TABLE) $(SELECTED) --output recipes/curve/convergence.md --marker scores --group-by key_dim,heads \
	    --columns 'heads,key_dim,seeds,nll,sacrebleu,chrf++' \
	    --baseline curve-none-dk256-scaled062_lr2-s1-u5500 --baseline curve-none-dk32-lr2-s1-u5500
	$(TABLE) $(wildcard results/quarter/*.json) --output recipes/curve/quarter.md --marker runs \
	    --group-by heads,key_dim,config.optimization.lr \
	    --columns 'heads,key_dim,config.optimization.lr,seeds,parameters,nll valid,nll all tests,sacrebleu'
	@set -e; for part in selection tests pairs; do \
	    $(COLLAB:collab=python) recipes/curve/convergence.py $$part $(LONGER) \
	        --output recipes/curve/convergence.md --marker $$part $(CHECK); done
	@set -e; for part in blind shares; do \
	    $(COLLAB:collab=python) recipes/curve/convergence.py $$part $(LONGER) --blind results/blind_scores.json \
	        --output recipes/curve/convergence.md --marker $$part $(CHECK); done
	@$(COLLAB:collab=python) recipes/curve/convergence.py masked $(RUNS)/curve_masked-*.json $(AT_32) \
	    --output recipes/curve/convergence.md --marker masked $(CHECK)
	@$(COLLAB:collab=python) recipes/curve/logits.py --output recipes/curve/convergence.md --marker logits $(CHECK)
	$(TABLE) $(RUNS)/micro_wmt-*-u1200.json --output recipes/micro_wmt/README.md --marker rate \
	    --group-by heads,key_dim,config.optimization.lr --columns heads,key_dim,config.optimization.lr,valid_loss,sacrebleu
	$(TABLE) $(RUNS)/multi30k-*-blocks*-u1500.json --output docs/speed.md --marker precision \
	    --group-by config.common.amp --columns config.common.amp,seeds,valid_loss,sacrebleu
	$(TABLE) $(RUNS)/toy-*.json --output recipes/demo/README.md --marker demo --baseline toy-none-dk16-s1-u1500 \
	    --columns heads,key_dim,updates,seeds,parameters,valid_loss,sacrebleu
	@$(COLLAB:collab=python) recipes/reparam/report.py results/reparam/*.json --output recipes/reparam/README.md \
	    --marker study $(CHECK)
	@$(COLLAB:collab=python) recipes/reparam/fit_speed.py results/fit.json --output recipes/reparam/README.md \
	    --marker fit $(CHECK)
	@$(COLLAB:collab=python) recipes/lookup/lookup.py results/lookup.json --output recipes/lookup/README.md \
	    --marker lookup $(CHECK)
	$(TABLE) $(PUBLISHED) --output recipes/wmt14_en_de/README.md --marker published \
	    --columns heads,key_dim,parameters,compound_split,wall_time --group-by key_dim,heads
	@$(COLLAB) bench table results/bench/layer.json results/bench/decode.json results/bench/train.json $(CHECK) \
	    --rows 'layer/encoder/*/dk128/train' --rows 'layer/encoder/64x32/dk512/train' \
	    --rows 'layer/encoder/64x32/dk128/memory' --rows 'layer/encoder/64x32/dk512/memory' --rows 'decode/cross/*/dk128' \
	    --rows 'decode/self/*/dk128' --rows 'train/base/*' --output docs/speed.md --marker speed
	@$(COLLAB) bench table results/bench/train-fast.json results/bench/decode-fast.json \
	    results/bench/decode-fast-base.json $(CHECK) --output docs/speed.md --marker fast
	@$(COLLAB) bench table results/bench/layer-h100.json results/bench/decode-h100.json results/bench/train-h100.json \
	    $(CHECK) --rows 'layer/encoder/*/dk128/*' --rows 'layer/encoder/512x32/dk512/*' \
	    --rows 'decode/*' --rows 'train/base/*' --output docs/speed.md --marker gpu

figures:
	@$(COLLAB:collab=python) docs/idea.py
	$(TABLE) $(RUNS)/multi30k-none-dk128-s?-u4000.json $(RUNS)/multi30k-*-dk32-s?-u4000.json \
	    $(RUNS)/multi30k-*-blocks-s?-u4000.json $(RUNS)/multi30k-*-blocks8-s?-u4000.json \
	    --figure results/multi30k-table.svg --x updates --group-by heads,key_dim
	$(TABLE) $(RUNS)/multi30k-none-s1-u2500.json $(RUNS)/multi30k-*-dk[13]?-s1-u2500.json \
	    --figure results/multi30k-curves.svg --x updates
	$(TABLE) $(PUBLISHED) --figure results/wmt14-parameters.svg --x parameters --y compound_split
	$(TABLE) $(PUBLISHED) --figure results/wmt14-time.svg --x wall_time --y compound_split
	$(TABLE) $(CHECKED) $(RUNS)/curve-*-dk[136]?-*-u2000.json $(PUBLISHED) --figure results/curve.svg --x key_dim
	@$(COLLAB:collab=python) recipes/curve/convergence.py figure $(LONGER) $(CHECKED) $(AT_32) --figure results/convergence.svg
	@$(COLLAB:collab=python) recipes/heads/figures.py $(foreach what,$(ANALYSES),results/heads/*.$(what).json)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
