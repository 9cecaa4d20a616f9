#!/usr/bin/env bash
# Multi30K English-German: gzipped raw text -> joint SentencePiece BPE -> fairseq data-bin. See --help.
set -euo pipefail

# shellcheck source=data_prep/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

corpus="Multi30K English-German"
variable=MULTI30K_DIR
origin="without it they are downloaded from \$MULTI30K_URL,
                    by default the corpus's own repository, to OUTPUT.download"
url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}
vocab_size=6000
# shellcheck source=data_prep/gzipped_texts.sh
. "$here/gzipped_texts.sh"
