# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# A corpus of gzipped raw texts, English-German -> joint SentencePiece BPE -> fairseq data-bin. Sourced, not run. A script
# sets `name`, `corpus` (what it is called), `variable` (what names its folder), `origin` (where it is had without), `url`
# (of its files, or nothing where they cannot be had one by one) and `vocab_size`, and has a manifest of its name.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=data_prep/lib.sh
. "$here/lib.sh"

source_dir=${!variable:-}
output=$root/data/$name
spm=
dict=
manifest=$here/$name.tsv
python=${PYTHON:-python}
force=no

splits() { # SPLIT (TEXT), ... as in the manifest
    awk -F '\t' '!/^#/ { sub(/\.[^.]*\.gz$/, "", $1); print $4 " (" $1 ")" }' "$manifest" | uniq | paste -sd , - | sed 's/,/, /g'
}

usage() {
    cat <<EOF
usage: data_prep/$name.sh [--source DIR] [--output DIR] [--vocab-size N | --spm FILE [--dict FILE]]
                          [--manifest FILE] [--python PROGRAM] [--force]

Check the gzipped raw files of $corpus, train a joint SentencePiece BPE model on the training text, encode all
splits and binarise them for fairseq.

  --source DIR      directory with the *.gz files (default: \$$variable; $origin)
  --output DIR      where the result goes (default: data/$name of the repository)
  --vocab-size N    SentencePiece pieces, both languages together (default: $vocab_size)
  --spm FILE        encode with this SentencePiece model instead of training one, for a translation model that was
                    trained with it
  --dict FILE       that translation model's joint dictionary (dict.*.txt of its data)
  --manifest FILE   expected files: name, SHA-256, lines, split (default: data_prep/$name.tsv)
  --python PROGRAM  Python with fairseq and sentencepiece (default: \$PYTHON, else python)
  --force           rebuild an output that is there already

OUTPUT then holds
  data-bin/              for fairseq: $(splits)
  raw/                   the raw text of every split, for \`collab score --reference\`
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

[ -n "$source_dir$url" ] || die "the corpus is not to be had as files: name a folder with --source or \$$variable ($origin)"
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
valids='' tests=''
while IFS=$'\t' read -r base split; do
    for lang in en de; do
        "$python" "$here/sentencepiece_bpe.py" encode --model "$work/sentencepiece.model" \
            "$work/raw/$base.$lang" "$work/bpe/$base.$lang" || give_up
    done
    case $split in
        train) train=bpe/$base ;;
        valid*) valids+=${valids:+,}bpe/$base ;;
        test*) tests+=${tests:+,}bpe/$base ;;
        *) die "$manifest: unknown split '$split' (train, valid, valid1, ..., test, test1, ...)" ;;
    esac
done < <(awk -F '\t' '!/^#/ { sub(/\.[^.]*\.gz$/, "", $1); print $1 "\t" $4 }' "$manifest" | uniq)

preprocess --source-lang en --target-lang de --trainpref "$train" --validpref "$valids" --testpref "$tests" \
    --workers 1 ${dict:+--srcdict "$dict"}
rm -r "$work/bpe"
recipe_of >"$work/prepared.txt"
keep_output
