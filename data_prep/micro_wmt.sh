#!/usr/bin/env bash
# Micro-WMT English-German: gzipped raw text -> joint SentencePiece BPE -> fairseq data-bin. See --help.
set -euo pipefail

# shellcheck source=data_prep/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

corpus="micro-WMT English-German"
variable=MICRO_WMT_DIR
origin="data_prep/micro_wmt_corpus.py
                    makes them from the public sources"
vocab_size=8000
# shellcheck source=data_prep/gzipped_texts.sh
. "$here/gzipped_texts.sh"
