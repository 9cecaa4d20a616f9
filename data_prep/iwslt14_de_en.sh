#!/usr/bin/env bash
# IWSLT14 German-English (TED talks) with SentencePiece. See --help.
set -euo pipefail

# shellcheck source=data_prep/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

archive=${IWSLT14_DE_EN_ARCHIVE:-}
vocab_size=10000

usage() {
    cat <<END
usage: data_prep/iwslt14_de_en.sh [options]

IWSLT14 German-English as usually divided -> joint SentencePiece BPE -> fairseq data-bin. Every 23rd training pair is held
out for validation; the test set is dev2010, dev2012 (TEDX), tst2010, tst2011 and tst2012 together. Training pairs with
more than 175 pieces, or more than 1.5 times as many on one side as on the other, are left out. The text stays raw: not
lower-cased, not tokenised, so that scores are not those of papers that do both.

  --archive PATH    de-en.tgz, or a folder in which it was unpacked (default: \$IWSLT14_DE_EN_ARCHIVE; without it the archive
                    is downloaded to OUTPUT.download)
  --vocab-size N    SentencePiece pieces, both languages together (default: $vocab_size)
END
    common_usage "raw/ (the test set), sentencepiece.model,"
}

header() {
    echo "# data_prep/iwslt14_de_en.sh: $vocab_size pieces, at most 175 per sentence, ratio 1.5, every 23rd pair held out"
}

begin --archive "$@"
encode_pieces de en 2000000 train test
clean_pairs de en --longest 175 --ratio 1.5 --every 23 pieces/valid
keep_output pieces --source-lang de --target-lang en --trainpref pieces/clean --validpref pieces/valid --testpref pieces/test
