#!/usr/bin/env bash
# GLUE with BERT: fine-tuning, conversion, analyses. See --help; STEP is minilm, sequence, table, figure, embeddings or heads.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes glue "$@"
