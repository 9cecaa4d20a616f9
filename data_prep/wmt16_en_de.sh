#!/usr/bin/env bash
# WMT14 English-German as Google preprocessed it (the set of the paper) -> fairseq data-bin. See --help.
set -euo pipefail

# shellcheck source=data_prep/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

archive=${WMT16_EN_DE_ARCHIVE:-}
output=${WMT16_EN_DE_OUTPUT:-$output}
manifest=${WMT16_EN_DE_MANIFEST:-$manifest}

usage() {
    cat <<END
usage: data_prep/wmt16_en_de.sh [options]

Check Google's preprocessed WMT14 English-German set (4.5 million sentence pairs, tokenised, joint BPE) and binarise it
for fairseq with a joined dictionary of 32,768 types: valid is newstest2013, test is newstest2014. \$WMT16_EN_DE_OUTPUT and
\$WMT16_EN_DE_MANIFEST change the defaults of --output and --manifest.

  --archive PATH    wmt16_en_de.tar.gz, or a folder in which it was unpacked (default: \$WMT16_EN_DE_ARCHIVE; without it
                    the archive is downloaded from Google Drive to OUTPUT.download)
END
    common_usage ""
}

header() {
    echo "# data_prep/wmt16_en_de.sh: joined dictionary of 32768 types"
}

begin --archive "$@"
keep_output raw --source-lang en --target-lang de --trainpref raw/train --validpref raw/newstest2013 \
    --testpref raw/newstest2014 --nwordssrc 32768 --nwordstgt 32768
