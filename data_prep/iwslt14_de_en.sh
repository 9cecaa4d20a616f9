#!/usr/bin/env bash
# IWSLT14 German-English (TED talks) with SentencePiece. See --help.
set -euo pipefail

name=iwslt14_de_en
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=data_prep/lib.sh
. "$here/lib.sh"

archive=${IWSLT14_DE_EN_ARCHIVE:-}
url=
output=$root/data/iwslt14_de_en
vocab_size=10000
workers=
manifest=$here/iwslt14_de_en.tsv
python=${PYTHON:-python}
force=no

usage() {
    cat <<EOF
usage: data_prep/iwslt14_de_en.sh [--archive PATH | --url URL] [--output DIR] [--vocab-size N] [--workers N]
                                  [--manifest FILE] [--python PROGRAM] [--force]

IWSLT14 German-English as usually divided -> joint SentencePiece BPE -> fairseq data-bin. Every 23rd training pair is held
out for validation; the test set is dev2010, dev2012 (TEDX), tst2010, tst2011 and tst2012 together. Training pairs with
more than 175 pieces, or more than 1.5 times as many on one side as on the other, are left out. The text stays raw: not
lower-cased, not tokenised, so that scores are not those of papers that do both.

  --archive PATH    de-en.tgz, or a folder in which it was unpacked (default: \$IWSLT14_DE_EN_ARCHIVE; without it the archive
                    is downloaded to OUTPUT.download; an interrupted download is continued)
  --url URL         download URL/de-en.tgz instead, from a mirror
  --output DIR      where the result goes (default: data/iwslt14_de_en of the repository)
  --vocab-size N    SentencePiece pieces, both languages together (default: 10000)
  --workers N       processes of fairseq-preprocess (default: the number of cores)
  --manifest FILE   expected archive and texts: sum, line counts (default: data_prep/iwslt14_de_en.tsv)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)
  --force           rebuild an output that is there already

OUTPUT then holds data-bin/ for fairseq, raw/ (the test set), sentencepiece.model, prepared.txt (what it was made from, with
the sum of the archive) and SHA256SUMS. It appears whole or not at all. A second run checks it and does nothing more.
EOF
}

own_option() {
    case $1 in
        --archive) archive=$2 ;;
        --url) url=$2 ;;
        --vocab-size) vocab_size=$2 && need_number "$1" "$2" ;;
        --workers) workers=$2 && need_number "$1" "$2" ;;
        *) return 1 ;;
    esac
}
read_options "$@"
[ -z "$archive" ] || [ -z "$url" ] || die "--archive and --url exclude each other"

header="# data_prep/iwslt14_de_en.sh: $vocab_size pieces, at most 175 per sentence, ratio 1.5, every 23rd pair held out"
open_output
[ -n "$workers" ] || workers=$(cores)
fetch_archives ${archive:+"de-en.tgz=$archive"}
make_work
mkdir "$work/raw"
unpack_archives "$work/raw"
encode_pieces de en 2000000 train test
clean_pairs de en --longest 175 --ratio 1.5 --every 23 pieces/valid
rm "$work"/raw/train.*
preprocess --source-lang de --target-lang en --trainpref pieces/clean --validpref pieces/valid \
    --testpref pieces/test --workers "$workers"
rm -r "$work/pieces"
keep_output
