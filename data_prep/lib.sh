# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: the sourcing script assigns and uses what is here
# Shared by the scripts of this folder: downloads, pieces, binarising, and an output that appears whole or not at all.
# Sourced, not run. A script sets `header`, the first line of prepared.txt: what besides the archives decides the result.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=recipes/lib/options.sh
. "$root/recipes/lib/options.sh"
title=$(basename "$script" .sh)

manifest=$here/$title.tsv
output=$root/data/$title
python=${PYTHON:-python}
url='' workers='' force='' spm=''

common_usage() { # WHAT: the options of all scripts, and what OUTPUT holds besides data-bin/ and records
    cat <<END
  --url URL         download URL/<archive> instead, from a mirror; an interrupted download is continued
  --output DIR      where the result goes (default: ${output#"$root/"} of the repository)
  --workers N       processes of fairseq-preprocess (default: ${workers:-the number of cores})
  --manifest FILE   expected archives and texts: sums, line counts (default: ${manifest#"$root/"})
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)
  --force           rebuild an output that is there already

OUTPUT then holds data-bin/ for fairseq, $1
prepared.txt (what it was made from) and SHA256SUMS of all. It appears whole or not at all. A second run checks it and does
nothing more.
END
}

give_up() { # after a helper has said what is wrong
    say "nothing was prepared"
    exit 1
}

sum_files() { # hash the named files in `sha256sum` format, wherever that program is called otherwise
    if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi
}

is_prepared() { # FILE: whether FILE, the prepared.txt of an earlier run, says what this run would say; a script may differ
    [ "$(head -n 1 "$1")" = "$header" ] && "$python" "$here/unpack.py" agrees "$manifest" "$1"
}

open_output() { # ends the script where $output is complete already; refuses what is not this script's
    [ -e "$manifest" ] || die "no manifest $manifest"
    manifest=$(absolute "$manifest")
    [ -n "$output" ] && [ "$output" != / ] || die "--output must name a directory, got '$output'"
    command -v "$python" >/dev/null || die "no Python '$python'; name one with --python"
    # steps run in other folders
    case $python in */*) python=$(absolute "$python") ;; esac
    output=$(absolute "$output")
    mkdir -p "$(dirname "$output")"
    if [ -e "$output" ]; then
        if [ ! -f "$output/prepared.txt" ]; then
            [ -d "$output" ] && [ -z "$(ls -A "$output")" ] ||
                die "$output exists and was not made by this script; move it away or choose another --output"
            rmdir "$output"
        elif [ -z "$force" ]; then
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

make_work() { # sets work: a folder beside $output that is gone when the script ends
    work=$(mktemp -d "$output.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    chmod 755 "$work"
    mkdir "$work/raw"
}

download() { # URL FILE: continues FILE
    local status=0 fetch=(curl --fail --location --silent --show-error --retry 3 --output "$2" "$1")
    "${fetch[@]}" --continue-at - || status=$?
    # 22, 33, 36: the server cannot continue, as when FILE is whole already
    case $status in 22 | 33 | 36) [ -s "$2" ] && rm "$2" && "${fetch[@]}" ;; *) return "$status" ;; esac
}

fetch() { # ARCHIVE ADDRESS FILE: downloads and checks an archive that is not there yet
    [ ! -f "$3" ] || return 0
    command -v curl >/dev/null || die "curl is needed for the download; or name what you have (see --help)"
    say "downloading $1"
    download "$2" "$3.part" </dev/null ||
        die "the download of $2 failed; run again to continue, or name what you have (see --help)"
    "$python" "$here/unpack.py" check "$manifest" "$1" "$3.part" || {
        rm -f "$3.part"
        die "$2 did not give the archive (see above); download it by hand and name it (see --help)"
    }
    mv "$3.part" "$3"
}

open_corpus() { # GIVEN: the archive, or a folder of several, else a download to $output.download -> texts in $work/raw
    local given=$1 archive address sources=() archives
    archives=$("$python" "$here/unpack.py" archives "$manifest") || give_up
    [ -n "$given" ] || mkdir -p "$output.download"
    while IFS=$'\t' read -r archive address; do
        if [ -z "$given" ]; then
            [ -z "$url" ] || address=${url%/}/$archive
            fetch "$archive" "$address" "$output.download/$archive"
            sources+=("$archive=$output.download/$archive")
        elif [ "$(grep -c '' <<<"$archives")" -eq 1 ]; then
            sources+=("$archive=$given")
        else
            sources+=("$archive=$given/$archive")
        fi
    done <<<"$archives"
    make_work
    say "checking and unpacking"
    { echo "$header" && "$python" "$here/unpack.py" unpack "$manifest" "$work/raw" "${sources[@]}"; } \
        >"$work/prepared.txt" || give_up
}

begin() { # OPTION ARGUMENTS: reads them, and opens the corpus, which OPTION may name; `header` prints the header
    local corpus=${1#--}
    read_options "${@:2}"
    [ -z "${!corpus}" ] || [ -z "$url" ] || die "$1 and --url exclude each other"
    header=$(header)
    open_output
    open_corpus "${!corpus}"
}

pieces() { # ARGUMENTS of pieces.py; the model stores the names of its texts: they are to be relative
    "$python" "$here/pieces.py" "$@" || give_up
}

encode_pieces() { # LANG LANG LINES TEXT...: joint SentencePiece BPE of $work/raw/TEXT.LANG, that of $spm, else learnt on
    # about LINES of train
    local langs=("$1" "$2") lines=$3 text lang pairs=()
    for text in "${@:4}"; do
        for lang in "${langs[@]}"; do pairs+=("raw/$text.$lang" "pieces/$text.$lang"); done
    done
    mkdir "$work/pieces"
    if [ -n "$spm" ]; then
        cp "$spm" "$work/sentencepiece.model"
    else
        say "training SentencePiece BPE with $vocab_size pieces"
        (cd "$work/raw" && pieces train --vocab-size "$vocab_size" ${lines:+--lines "$lines"} \
            --model ../sentencepiece.model "train.${langs[0]}" "train.${langs[1]}") || exit
    fi
    say "encoding"
    (cd "$work" && pieces encode --model sentencepiece.model "${pairs[@]}") || exit
}

clean_pairs() { # LANG LANG FLAGS of pieces.py clean: $work/pieces/train -> $work/pieces/clean
    (cd "$work" && pieces clean pieces/train pieces/clean --langs "$@") || exit
    rm "$work"/raw/train.*
}

keep_output() { # TEXTS FLAGS of fairseq-preprocess: binarises them; $work without the folder TEXTS becomes $output, with its sums
    local texts=$1 file files=()
    shift
    say "binarising"
    [ -n "$workers" ] || workers=$(usable_cores)
    (cd "$work" && "$python" -m fairseq_cli.preprocess --joined-dictionary --destdir data-bin --workers "$workers" "$@" \
        >preprocess.out 2>&1) || {
        tail -n 5 "$work/preprocess.out" >&2
        die "fairseq-preprocess failed (its last lines are above); nothing was prepared"
    }
    rm -r "$work/preprocess.out" "$work/data-bin/preprocess.log" "${work:?}/$texts"
    for file in "$work"/* "$work"/*/*; do
        if [ -f "$file" ]; then files+=("${file#"$work/"}"); fi
    done
    (cd "$work" && sum_files "${files[@]}" >.sums && mv .sums SHA256SUMS)
    if [ -e "$output" ]; then mv "$output" "$work.old"; fi
    mv "$work" "$output"
    rm -rf "$work.old"
    local dictionaries=("$output"/data-bin/dict.*.txt)
    say "ready: $output/data-bin ($(grep -c '' "${dictionaries[0]}") types in the joint dictionary)"
}
