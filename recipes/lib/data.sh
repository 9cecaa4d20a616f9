# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Raw text to a fairseq data-bin for recipes with a corpus of their own making. Sourced; uses common.sh.

binarise() { # DIR VOCAB_SIZE: DIR/raw/{train,valid,test}.LANG -> DIR/sentencepiece.model, DIR/data-bin, DIR/SHA256SUMS
    local folder=$1 pieces=$2 part lang pairs=()
    mkdir -p "$folder/bpe"
    for part in train valid test; do
        for lang in "$source_lang" "$target_lang"; do pairs+=("raw/$part.$lang" "bpe/$part.$lang"); done
    done
    # relative names: the model stores them
    (cd "$folder" && "$python" "$root/data_prep/sentencepiece_bpe.py" train --vocab-size "$pieces" \
        --model sentencepiece.model "raw/train.$source_lang" "raw/train.$target_lang" &&
        "$python" "$root/data_prep/sentencepiece_bpe.py" encode --model sentencepiece.model "${pairs[@]}") ||
        die "the text could not be encoded"
    (cd "$folder" && "$scripts/fairseq-preprocess" --source-lang "$source_lang" --target-lang "$target_lang" \
        --joined-dictionary --trainpref bpe/train --validpref bpe/valid --testpref bpe/test --destdir data-bin \
        --workers 1 >preprocess.out 2>&1) ||
        {
            tail -n 5 "$folder/preprocess.out" >&2
            die "fairseq-preprocess failed (its last lines are above)"
        }
    rm -r "$folder/bpe" "$folder/preprocess.out" "$folder/data-bin/preprocess.log"
    (cd "$folder" && "$python" - sentencepiece.model raw/* data-bin/* >.sums <<'PYTHON'
import hashlib
import sys

for name in sys.argv[1:]:
    with open(name, "rb") as stream:
        sys.stdout.write(f"{hashlib.sha256(stream.read()).hexdigest()}  {name}\n")
PYTHON
    ) && mv "$folder/.sums" "$folder/SHA256SUMS"
}
