# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Shared by the scripts of this folder: messages, downloads, and an output that appears whole or not at all. Sourced,
# not run. A script sets `here` (this folder), `name` (its own), `output`, `manifest`, `python` and `force`.

die() {
    echo "data_prep/$name.sh: error: $*" >&2
    exit 1
}

say() {
    echo "$name: $*" >&2
}

give_up() { # after a helper has said what is wrong
    say "nothing was prepared"
    exit 1
}

common_option() { # OPTION VALUE: an option that every script has
    case $1 in
        --output) output=$2 ;;
        --manifest) manifest=$2 ;;
        --python) python=$2 ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
}

read_options() { # ARGUMENTS: own_option OPTION VALUE takes what the script alone has and fails for everything else
    while [ $# -gt 0 ]; do
        case $1 in
            --force) force=yes && shift && continue ;;
            -h | --help) usage && exit 0 ;;
            --*) [ $# -ge 2 ] || die "$1 needs a value" ;;
        esac
        own_option "$1" "${2-}" || common_option "$1" "${2-}"
        shift 2
    done
}

need_number() { # OPTION VALUE
    case $2 in '' | *[!0-9]*) die "$1 must be a whole number, got '$2'" ;; esac
    [ "$2" -gt 0 ] || die "$1 must be at least 1, got $2"
}

absolute() { # the absolute name of a path whose folder exists
    echo "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
}

cores() {
    "$python" -c 'import os; print(os.cpu_count())'
}

sum_files() { # hash the named files in `sha256sum` format, wherever that program is called otherwise
    if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

download() { # URL FILE: continues FILE
    local status=0 fetch=(curl --fail --location --silent --show-error --retry 3 --output "$2" "$1")
    "${fetch[@]}" --continue-at - || status=$?
    # 22, 33, 36: the server cannot continue, as when FILE is whole already
    case $status in 22 | 33 | 36) [ -s "$2" ] && rm "$2" && "${fetch[@]}" ;; *) return "$status" ;; esac
}

is_prepared() { # FILE: whether FILE, the prepared.txt of an earlier run, says what this run would say; a script may differ
    same_archives "$1"
}

open_output() { # ends the script where $output is complete already; refuses what is not this script's
    [ -f "$manifest" ] || die "no manifest $manifest"
    manifest=$(absolute "$manifest")
    [ -n "$output" ] && [ "$output" != / ] || die "--output must name a directory, got '$output'"
    command -v "$python" >/dev/null || die "no Python '$python'; name one with --python"
    # steps run in other folders
    case $python in /*) ;; */*) python=$(absolute "$python") ;; esac
    mkdir -p "$(dirname "${output%/}")"
    output=$(absolute "${output%/}")
    if [ -e "$output" ]; then
        if [ ! -f "$output/prepared.txt" ]; then
            [ -d "$output" ] && [ -z "$(ls -A "$output")" ] ||
                die "$output exists and was not made by this script; move it away or choose another --output"
            rmdir "$output"
        elif [ "$force" = no ]; then
            is_prepared "$output/prepared.txt" ||
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
}

same_archives() { # FILE: whether it has the first line $header and the rows of $manifest
    [ "$(head -n 1 "$1")" = "$header" ] && "$python" "$here/unpack.py" agrees "$manifest" "$1"
}

unpack_archives() { # FOLDER: the texts of $sources -> FOLDER; writes prepared.txt of $work
    say "checking and unpacking"
    { echo "$header" && "$python" "$here/unpack.py" unpack "$manifest" "$1" "${sources[@]}"; } \
        >"$work/prepared.txt" || give_up
}

fetch_archives() { # [FOLDER or NAME=PATH]: sets sources; without an argument all archives are downloaded to $output.download
    local archive address file
    sources=()
    case ${1:-} in
        '') ;;
        *=*) sources=("$1") && return ;;
        *)
            while IFS=$'\t' read -r archive _; do sources+=("$archive=$1/$archive"); done \
                < <("$python" "$here/unpack.py" archives "$manifest")
            return
            ;;
    esac
    command -v curl >/dev/null || die "curl is needed for the download; or name what you have (see --help)"
    mkdir -p "$output.download"
    while IFS=$'\t' read -r archive address; do
        file=$output.download/$archive
        sources+=("$archive=$file")
        [ -f "$file" ] && continue
        [ -z "${url:-}" ] || address=${url%/}/$archive
        say "downloading $archive"
        download "$address" "$file.part" </dev/null ||
            die "the download of $address failed; run again to continue, or name what you have (see --help)"
        "$python" "$here/unpack.py" check "$manifest" "$archive" "$file.part" || {
            rm -f "$file.part"
            die "$address did not give the archive (see above); download it by hand and name it (see --help)"
        }
        mv "$file.part" "$file"
    done < <("$python" "$here/unpack.py" archives "$manifest")
}

make_work() { # sets work: a folder beside $output that is gone when the script ends
    work=$(mktemp -d "$output.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    chmod 755 "$work"
}

encode_pieces() { # LANG LANG LINES TEXT...: joint SentencePiece BPE of $work/raw/TEXT.LANG, learnt on about LINES lines of train
    local langs=("$1" "$2") lines=$3 text lang pairs=()
    shift 3
    for text; do
        for lang in "${langs[@]}"; do pairs+=("raw/$text.$lang" "pieces/$text.$lang"); done
    done
    mkdir "$work/pieces"
    say "training SentencePiece BPE with $vocab_size pieces"
    # relative names: the model stores them
    (cd "$work" && "$python" "$here/sentencepiece_bpe.py" train --vocab-size "$vocab_size" --lines "$lines" \
        --model sentencepiece.model "raw/train.${langs[0]}" "raw/train.${langs[1]}") || give_up
    say "encoding"
    (cd "$work" && "$python" "$here/sentencepiece_bpe.py" encode --model sentencepiece.model "${pairs[@]}") || give_up
}

clean_pairs() { # LANG LANG FLAGS of clean_pairs.py: $work/pieces/train -> $work/pieces/clean
    (cd "$work" && "$python" "$here/clean_pairs.py" pieces/train pieces/clean "$@") || give_up
}

preprocess() { # FLAGS of fairseq-preprocess: texts of $work -> $work/data-bin
    say "binarising"
    (cd "$work" && "$python" -m fairseq_cli.preprocess --joined-dictionary --destdir data-bin "$@" >preprocess.out 2>&1) ||
        {
            tail -n 5 "$work/preprocess.out" >&2
            die "fairseq-preprocess failed (its last lines are above); nothing was prepared"
        }
    rm "$work/preprocess.out" "$work/data-bin/preprocess.log"
}

keep_output() { # $work, with the sums of its files, becomes $output
    local file files=()
    for file in "$work"/* "$work"/*/*; do
        if [ -f "$file" ]; then files+=("${file#"$work/"}"); fi
    done
    (cd "$work" && sum_files "${files[@]}" >.sums && mv .sums SHA256SUMS)
    if [ -e "$output" ]; then
        mv "$output" "$work.old"
        mv "$work" "$output"
        rm -rf "$work.old"
    else
        mv "$work" "$output"
    fi
    local dictionaries=("$output"/data-bin/dict.*.txt)
    say "ready: $output/data-bin ($(grep -c '' "${dictionaries[0]}") types in the joint dictionary)"
}
