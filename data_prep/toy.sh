#!/usr/bin/env bash
# The corpus of the demo: sentences of data_prep/toy.py -> joint SentencePiece BPE -> fairseq data-bin. See --help.
set -euo pipefail

# shellcheck source=data_prep/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

seed=1 train=12000 valid=500 test=500 vocab_size=1500
manifest=/dev/null workers=1

usage() {
    cat <<END
usage: data_prep/toy.sh [options]

Make an English-German corpus from a grammar (data_prep/toy.py), train a joint SentencePiece BPE model on it, encode and
binarise it for fairseq.

  --seed N          of the corpus (default: $seed)
  --train N         sentence pairs to train on (default: $train)
  --valid N         sentence pairs to validate on (default: $valid)
  --test N          sentence pairs to translate (default: $test)
  --vocab-size N    SentencePiece pieces, both languages together (default: $vocab_size)
END
    common_usage "raw/ (all texts), sentencepiece.model, " | grep -v -e --url -e --manifest
}

is_prepared() {
    [ "$(cat "$1")" = "$header" ]
}

read_options "$@"
header="# data_prep/toy.sh: seed $seed, $train + $valid + $test sentence pairs, $vocab_size pieces"
open_output
make_work
"$python" "$here/toy.py" --seed "$seed" --train "$train" --valid "$valid" --test "$test" --output "$work/raw" || give_up
echo "$header" >"$work/prepared.txt"
encode_pieces en de '' train valid test
keep_output pieces --source-lang en --target-lang de --trainpref pieces/train --validpref pieces/valid --testpref pieces/test
