#!/usr/bin/env bash
# Kill a training at random moments, half of them inside checkpoint writes, and see that nothing is lost. See --help.
set -euo pipefail

recipe=survival
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/lib/data.sh
. "$root/recipes/lib/data.sh"

kills=20
seed=1
updates=400
save_interval=5
source_lang=en
target_lang=de
model_flags=(--arch transformer_collab_tiny --key-dim 16 --share-all-embeddings --dropout 0.1
    --encoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 4
    --decoder-layers 2 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 --decoder-attention-heads 4)
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.005 --lr-scheduler inverse_sqrt
    --warmup-updates 300 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 500)

usage() {
    cat <<EOF
usage: recipes/survival/run.sh [options]

Train a small model on the CPU twice: undisturbed, and killed (SIGKILL) again and again at random moments, every other
time inside the write of a checkpoint. The same command is started again each time. At the end no checkpoint was torn,
every restart went on from the newest one, and weights and optimizer are equal bit for bit; else the status is 1.

  --kills N         (default: $kills)
  --updates N       length of the training (default: $updates; a checkpoint every $save_interval)
  --seed N          of the training and of the moments (default: $seed)
  --data DIR        a data-bin of fairseq (default: a small corpus, made by data_prep/toy.py)
  --output DIR      (default: runs/survival/seed<N>)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)

OUTPUT: whole/ and killed/ with the checkpoints, the logs, survival.json with every kill. An earlier result is replaced.
EOF
}

python=${PYTHON:-python}
output=
data_bin=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --*) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
        --kills) kills=$2 && need_number "$1" "$2" ;;
        --updates) updates=$2 && need_number "$1" "$2" ;;
        --seed) seed=$2 && need_number "$1" "$2" ;;
        --data) data_bin=$2 ;;
        --output) output=$2 ;;
        --python) python=$2 ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
    shift 2
done
find_tools
output=$(absolute "${output:-$root/runs/survival/seed$seed}")
mkdir -p "$output"
output=$(cd "$output" && pwd)

if [ -z "$data_bin" ]; then
    data=$output/data data_bin=$output/data/data-bin
    if [ ! -f "$data/SHA256SUMS" ]; then
        say "making the corpus"
        rm -rf "$data"
        mkdir "$data"
        "$python" "$root/data_prep/toy.py" --train 3000 --valid 100 --test 100 --output "$data/raw" ||
            die "the corpus could not be made"
        binarise "$data" 500
    fi
fi

rm -rf "$output/whole" "$output/killed" "$output/survival.json"
OMP_NUM_THREADS=1 "$python" "$root/recipes/survival/study.py" --output "$output" --updates "$updates" --kills "$kills" \
    --seed "$seed" -- "$scripts/fairseq-train" "$(absolute "$data_bin")" --user-dir "$("$scripts/collab" user-dir)" \
    "${model_flags[@]}" "${optimisation_flags[@]}" --cpu --distributed-world-size 1 --num-workers 0 --seed "$seed" \
    --max-update "$updates" --save-interval-updates "$save_interval" --keep-interval-updates 3 --no-epoch-checkpoints \
    --log-format json --log-interval 1 >&2 || die "the training did not survive, see $output/survival.json"
say "result: $output/survival.json"
