#!/usr/bin/env bash
# WMT14 English-German from the raw corpora with SentencePiece: untokenised, for sacreBLEU alone. See --help.
set -euo pipefail

# shellcheck source=data_prep/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# shellcheck disable=SC2034  # the option of that name
source=${WMT14_EN_DE_DIR:-}
vocab_size=32000

usage() {
    cat <<END
usage: data_prep/wmt14_en_de_spm.sh [options]

Raw WMT14 English-German (Europarl v7, Common Crawl, News Commentary v9) -> joint SentencePiece BPE -> fairseq data-bin.
Pairs with more than 250 pieces, or more than 1.5 times as many on one side as on the other, are left out. Valid is
newstest2013, test is newstest2014 (wmt14/full). Compare sacreBLEU only: it is not the set of the paper.

  --source DIR      folder with training-parallel-europarl-v7.tgz, training-parallel-commoncrawl.tgz,
                    training-parallel-nc-v9.tgz, test.tgz (wmt13) and test-full.tgz (wmt14) (default: \$WMT14_EN_DE_DIR;
                    without it they are downloaded to OUTPUT.download)
  --vocab-size N    SentencePiece pieces, both languages together (default: $vocab_size), learnt on two million lines
END
    common_usage "raw/ (newstest2013 and newstest2014), sentencepiece.model,"
}

header() {
    echo "# data_prep/wmt14_en_de_spm.sh: $vocab_size pieces, at most 250 per sentence, ratio 1.5"
}

begin --source "$@"
encode_pieces en de 2000000 train newstest2013 newstest2014
clean_pairs en de --longest 250 --ratio 1.5
keep_output pieces --source-lang en --target-lang de --trainpref pieces/clean --validpref pieces/newstest2013 \
    --testpref pieces/newstest2014
