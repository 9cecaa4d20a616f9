#!/usr/bin/env bash
# GLUE with BERT: fine-tuning, conversion, analyses. See --help; STEP is minilm, sequence, table, figure, embeddings or heads.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m recipes glue "$@"
