#!/usr/bin/env bash
# WMT14 English-German as Google preprocessed it (the set of the paper) -> fairseq data-bin. See --help.
set -euo pipefail

name=wmt16_en_de
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
# shellcheck source=data_prep/lib.sh
. "$here/lib.sh"

archive=${WMT16_EN_DE_ARCHIVE:-}
url=
output=${WMT16_EN_DE_OUTPUT:-$root/data/wmt16_en_de}
workers=
manifest=${WMT16_EN_DE_MANIFEST:-$here/wmt16_en_de.tsv}
python=${PYTHON:-python}
force=no

usage() {
    cat <<EOF
usage: data_prep/wmt16_en_de.sh [--archive PATH | --url URL] [--output DIR] [--workers N] [--manifest FILE]
                                [--python PROGRAM] [--force]

Check Google's preprocessed WMT14 English-German set (4.5 million sentence pairs, tokenised, joint BPE) and binarise it
for fairseq with a joined dictionary of 32,768 types: valid is newstest2013, test is newstest2014.

  --archive PATH    wmt16_en_de.tar.gz, or a folder in which it was unpacked (default: \$WMT16_EN_DE_ARCHIVE; without it
                    the archive is downloaded from Google Drive to OUTPUT.download; an interrupted download is continued)
  --url URL         download URL/wmt16_en_de.tar.gz instead, from a mirror
  --output DIR      where the result goes (default: \$WMT16_EN_DE_OUTPUT, else data/wmt16_en_de of
                    the repository)
  --workers N       processes of fairseq-preprocess (default: the number of cores)
  --manifest FILE   expected archive and texts: sum, line counts (default: \$WMT16_EN_DE_MANIFEST, else
                    data_prep/wmt16_en_de.tsv)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)
  --force           rebuild an output that is there already

OUTPUT then holds data-bin/ for fairseq, prepared.txt (what it was made from) and SHA256SUMS of both. It appears whole or
not at all. A second run checks it and does nothing more.
EOF
}

own_option() {
    case $1 in
        --archive) archive=$2 ;;
        --url) url=$2 ;;
        --workers) workers=$2 && need_number "$1" "$2" ;;
        *) return 1 ;;
    esac
}
read_options "$@"
[ -z "$archive" ] || [ -z "$url" ] || die "--archive and --url exclude each other"

header="# data_prep/wmt16_en_de.sh: joined dictionary of 32768 types"
open_output
[ -n "$workers" ] || workers=$(cores)
fetch_archives ${archive:+"wmt16_en_de.tar.gz=$archive"}
make_work
mkdir "$work/text"
unpack_archives "$work/text"
preprocess --source-lang en --target-lang de --trainpref text/train --validpref text/newstest2013 \
    --testpref text/newstest2014 --nwordssrc 32768 --nwordstgt 32768 --workers "$workers"
rm -r "$work/text"
keep_output
