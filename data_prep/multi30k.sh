#!/usr/bin/env bash
# Multi30K English-German: gzipped raw text -> joint SentencePiece BPE -> fairseq data-bin. See --help.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw}

source_dir=${MULTI30K_DIR:-}
output=$root/data/multi30k
vocab_size=6000
manifest=$here/multi30k.tsv
python=${PYTHON:-python}
force=no

usage() {
    cat <<EOF
usage: data_prep/multi30k.sh [--source DIR] [--output DIR] [--vocab-size N] [--manifest FILE] [--python PROGRAM] [--force]

Check the gzipped raw files of Multi30K English-German, train a joint SentencePiece BPE model on the training
text, encode all splits and binarise them for fairseq.

  --source DIR      directory with the eight *.gz files (default: \$MULTI30K_DIR; without it they are downloaded
                    from \$MULTI30K_URL, by default the corpus's own repository, to OUTPUT.download; an interrupted
                    download is continued)
  --output DIR      where the result goes (default: data/multi30k of the repository)
  --vocab-size N    SentencePiece pieces, both languages together (default: 6000)
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

die() {
    echo "data_prep/multi30k.sh: error: $*" >&2
    exit 1
}

say() {
    echo "multi30k: $*" >&2
}

give_up() { # after a helper has said what is wrong
    say "nothing was prepared"
    exit 1
}

while [ $# -gt 0 ]; do
    case $1 in
        --source | --output | --vocab-size | --manifest | --python)
            [ $# -ge 2 ] || die "$1 needs a value"
            case $1 in
                --source) source_dir=$2 ;;
                --output) output=$2 ;;
                --vocab-size) vocab_size=$2 ;;
                --manifest) manifest=$2 ;;
                --python) python=$2 ;;
            esac
            shift 2
            ;;
        --force) force=yes && shift ;;
        -h | --help) usage && exit 0 ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
done

case $vocab_size in '' | *[!0-9]*) die "--vocab-size must be a whole number, got '$vocab_size'" ;; esac
[ -n "$output" ] && [ "$output" != / ] || die "--output must name a directory, got '$output'"
command -v "$python" >/dev/null || die "no Python '$python'; name one with --python"
[ -f "$manifest" ] || die "no manifest $manifest"
output=${output%/}
mkdir -p "$(dirname "$output")"
output=$(cd "$(dirname "$output")" && pwd)/$(basename "$output")
manifest=$(cd "$(dirname "$manifest")" && pwd)/$(basename "$manifest")

sum_files() { # hash the named files in `sha256sum` format, wherever that program is called otherwise
    if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

download() { # URL FILE: continues FILE
    local status=0 fetch=(curl --fail --location --silent --show-error --retry 3 --output "$2" "$1")
    "${fetch[@]}" --continue-at - || status=$?
    # 22, 33, 36: the server cannot continue, as when FILE is whole already
    case $status in 22 | 33 | 36) [ -s "$2" ] && rm "$2" && "${fetch[@]}" ;; *) return "$status" ;; esac
}

recipe_of() { # what determines the result; compared with prepared.txt of an earlier run
    echo "vocab_size $vocab_size"
    grep -v '^#' "$manifest"
}

if [ -e "$output" ]; then
    if [ ! -f "$output/prepared.txt" ]; then
        [ -d "$output" ] && [ -z "$(ls -A "$output")" ] ||
            die "$output exists and was not made by this script; move it away or choose another --output"
        rmdir "$output"
    elif [ "$force" = no ]; then
        recipe_of | cmp -s - "$output/prepared.txt" ||
            die "$output was prepared with other options or other files (see its prepared.txt);" \
                "give --force to rebuild it, or another --output"
        (cd "$output" && sum_files -c SHA256SUMS >/dev/null 2>&1) ||
            die "$output is damaged (its files differ from its SHA256SUMS); give --force to rebuild it"
        say "$output is complete, nothing to do"
        exit 0
    fi
fi

"$python" -c 'import sys; from importlib.util import find_spec as find; sys.exit(not (find("fairseq") and find("sentencepiece")))' ||
    die "'$python' lacks fairseq or sentencepiece; install the project first (README.md) or name another --python"

names=$("$python" "$here/unpack_corpus.py" files "$manifest")

if [ -z "$source_dir" ]; then
    source_dir=$output.download
    command -v curl >/dev/null || die "curl is needed for the download; or give --source DIR with the files"
    mkdir -p "$source_dir"
    for name in $names; do
        [ -f "$source_dir/$name" ] && continue
        say "downloading $name"
        download "$url/$name" "$source_dir/$name.part" ||
            die "the download of $url/$name failed; run again to continue, or give --source DIR with the files"
        mv "$source_dir/$name.part" "$source_dir/$name"
    done
fi

work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
chmod 755 "$work"

say "checking the files of $source_dir"
mkdir "$work/raw" "$work/bpe"
"$python" "$here/unpack_corpus.py" unpack "$manifest" "$source_dir" "$work/raw" || give_up

say "training SentencePiece BPE with $vocab_size pieces"
# relative names: the model stores them
(cd "$work/raw" && "$python" "$here/sentencepiece_bpe.py" train --vocab-size "$vocab_size" \
    --model ../sentencepiece.model train.en train.de) || give_up

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
done < <("$python" "$here/unpack_corpus.py" splits "$manifest")

say "binarising"
(cd "$work" && "$python" -m fairseq_cli.preprocess --source-lang en --target-lang de --joined-dictionary \
    "${prefixes[@]}" --testpref "$tests" --destdir data-bin --workers 1 >preprocess.out 2>&1) ||
    {
        tail -n 5 "$work/preprocess.out" >&2
        die "fairseq-preprocess failed (its last lines are above); nothing was prepared"
    }

rm -r "$work/bpe" "$work/preprocess.out" "$work/data-bin/preprocess.log"
recipe_of >"$work/prepared.txt"
(cd "$work" && sum_files prepared.txt sentencepiece.model sentencepiece.vocab raw/* data-bin/* >.sums && mv .sums SHA256SUMS)

if [ -e "$output" ]; then
    mv "$output" "$work.old"
    mv "$work" "$output"
    rm -rf "$work.old"
else
    mv "$work" "$output"
fi
say "ready: $output/data-bin ($(grep -c '' "$output/data-bin/dict.en.txt") types in the joint dictionary)"
