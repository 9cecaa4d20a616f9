#!/usr/bin/env bash
# Multi30K English-German: gzipped raw text -> joint SentencePiece BPE -> fairseq data-bin. See --help.
set -euo pipefail

name=multi30k
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=data_prep/lib.sh
. "$here/lib.sh"

url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}

source_dir=${MULTI30K_DIR:-}
output=$root/data/multi30k
vocab_size=6000
spm=
dict=
manifest=$here/multi30k.tsv
python=${PYTHON:-python}
force=no

usage() {
    cat <<EOF
usage: data_prep/multi30k.sh [--source DIR] [--output DIR] [--vocab-size N | --spm FILE [--dict FILE]]
                             [--manifest FILE] [--python PROGRAM] [--force]

Check the gzipped raw files of Multi30K English-German, train a joint SentencePiece BPE model on the training
text, encode all splits and binarise them for fairseq.

  --source DIR      directory with the eight *.gz files (default: \$MULTI30K_DIR; without it they are downloaded
                    from \$MULTI30K_URL, by default the corpus's own repository, to OUTPUT.download; an interrupted
                    download is continued)
  --output DIR      where the result goes (default: data/multi30k of the repository)
  --vocab-size N    SentencePiece pieces, both languages together (default: 6000)
  --spm FILE        encode with this SentencePiece model instead of training one, for a translation model that was
                    trained with it
  --dict FILE       that translation model's joint dictionary (dict.*.txt of its data)
  --manifest FILE   expected files: name, SHA-256, lines, split (default: data_prep/multi30k.tsv)
  --python PROGRAM  Python with fairseq and sentencepiece (default: \$PYTHON, else python)
  --force           rebuild an output that is there already

OUTPUT then holds
  data-bin/              for fairseq: train, valid (val), test (test_2016_flickr), test1 (test_2017_flickr)
  raw/                   the raw text of every split, e.g. test_2016_flickr.de for \`collab score --reference\`
  sentencepiece.model    for fairseq-interactive --bpe sentencepiece --sentencepiece-model
  prepared.txt           what it was made from
  SHA256SUMS             of all of the above

It appears whole or not at all. A second run checks it and does nothing more.
EOF
}

own_option() {
    case $1 in
        --source) source_dir=$2 ;;
        --vocab-size) vocab_size=$2 && need_number "$1" "$2" ;;
        --spm) spm=$2 ;;
        --dict) dict=$2 ;;
        *) return 1 ;;
    esac
}
read_options "$@"

[ -z "$dict" ] || [ -n "$spm" ] || die "--dict needs the SentencePiece model that goes with it (--spm)"
for file in "$spm" "$dict"; do
    [ -z "$file" ] || [ -f "$file" ] || die "there is no file $file"
done
[ -z "$spm" ] || spm=$(absolute "$spm")
[ -z "$dict" ] || dict=$(absolute "$dict")

recipe_of() { # what determines the result
    if [ -z "$spm" ]; then echo "vocab_size $vocab_size"; else echo "spm $(sum_files "$spm" | cut -d ' ' -f 1)"; fi
    [ -z "$dict" ] || echo "dict $(sum_files "$dict" | cut -d ' ' -f 1)"
    grep -v '^#' "$manifest"
}
is_prepared() {
    recipe_of | cmp -s - "$1"
}
open_output

fetch_archives "$source_dir"
make_work
mkdir "$work/raw" "$work/bpe"
header=
unpack_archives "$work/raw"

if [ -n "$spm" ]; then
    cp "$spm" "$work/sentencepiece.model"
else
    say "training SentencePiece BPE with $vocab_size pieces"
    # relative names: the model stores them
    (cd "$work/raw" && "$python" "$here/sentencepiece_bpe.py" train --vocab-size "$vocab_size" \
        --model ../sentencepiece.model train.en train.de) || give_up
fi

say "encoding"
prefixes=()
while IFS=$'\t' read -r base split; do
    for lang in en de; do
        "$python" "$here/sentencepiece_bpe.py" encode --model "$work/sentencepiece.model" \
            "$work/raw/$base.$lang" "$work/bpe/$base.$lang" || give_up
    done
    case $split in
        train) prefixes+=(--trainpref "bpe/$base") ;;
        valid) prefixes+=(--validpref "bpe/$base") ;;
        test) tests=bpe/$base ;;
        test*) tests=$tests,bpe/$base ;;
        *) die "$manifest: unknown split '$split' (train, valid, test, test1, ...)" ;;
    esac
done < <(awk -F '\t' '!/^#/ { sub(/\.[^.]*\.gz$/, "", $1); print $1 "\t" $4 }' "$manifest" | uniq)

preprocess --source-lang en --target-lang de "${prefixes[@]}" --testpref "$tests" --workers 1 \
    ${dict:+--srcdict "$dict"}
rm -r "$work/bpe"
recipe_of >"$work/prepared.txt"
keep_output
