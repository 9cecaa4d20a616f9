#!/usr/bin/env bash
# WMT14 English-German from the raw corpora with SentencePiece: untokenised, for sacreBLEU alone. See --help.
set -euo pipefail

name=wmt14_en_de_spm
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=data_prep/lib.sh
. "$here/lib.sh"

source_dir=${WMT14_EN_DE_DIR:-}
url=
output=$root/data/wmt14_en_de_spm
vocab_size=32000
workers=
manifest=$here/wmt14_en_de_spm.tsv
python=${PYTHON:-python}
force=no

usage() {
    cat <<EOF
usage: data_prep/wmt14_en_de_spm.sh [--source DIR | --url URL] [--output DIR] [--vocab-size N] [--workers N]
                                    [--manifest FILE] [--python PROGRAM] [--force]

Raw WMT14 English-German (Europarl v7, Common Crawl, News Commentary v9) -> joint SentencePiece BPE -> fairseq data-bin.
Pairs with more than 250 pieces, or more than 1.5 times as many on one side as on the other, are left out. Valid is
newstest2013, test is newstest2014 (wmt14/full). Compare sacreBLEU only: it is not the set of the paper.

  --source DIR      folder with training-parallel-europarl-v7.tgz, training-parallel-commoncrawl.tgz,
                    training-parallel-nc-v9.tgz, test.tgz (wmt13) and test-full.tgz (wmt14) (default: \$WMT14_EN_DE_DIR;
                    without it they are downloaded to OUTPUT.download; an interrupted download is continued)
  --url URL         download URL/<archive> instead, from a mirror
  --output DIR      where the result goes (default: data/wmt14_en_de_spm of the repository)
  --vocab-size N    SentencePiece pieces, both languages together (default: 32000); they are learnt on two million lines
  --workers N       processes of fairseq-preprocess (default: the number of cores)
  --manifest FILE   expected archives and texts: sums, line counts (default: data_prep/wmt14_en_de_spm.tsv)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)
  --force           rebuild an output that is there already

OUTPUT then holds data-bin/ for fairseq, raw/ (newstest2013 and newstest2014), sentencepiece.model, prepared.txt (what it was
made from, with the sums of the archives) and SHA256SUMS. It appears whole or not at all. A second run checks it and does
nothing more.
EOF
}

own_option() {
    case $1 in
        --source) source_dir=$2 ;;
        --url) url=$2 ;;
        --vocab-size) vocab_size=$2 && need_number "$1" "$2" ;;
        --workers) workers=$2 && need_number "$1" "$2" ;;
        *) return 1 ;;
    esac
}
read_options "$@"
[ -z "$source_dir" ] || [ -z "$url" ] || die "--source and --url exclude each other"

header="# data_prep/wmt14_en_de_spm.sh: $vocab_size pieces, at most 250 per sentence, ratio 1.5"
open_output
[ -n "$workers" ] || workers=$(cores)
fetch_archives "$source_dir"
make_work
mkdir "$work/raw"
unpack_archives "$work/raw"
encode_pieces en de 2000000 train newstest2013 newstest2014
clean_pairs en de --longest 250 --ratio 1.5
rm "$work"/raw/train.*
preprocess --source-lang en --target-lang de --trainpref pieces/clean --validpref pieces/newstest2013 \
    --testpref pieces/newstest2014 --workers "$workers"
rm -r "$work/pieces"
keep_output
