#!/usr/bin/env bash
# The recipe without the internet: a small model with random weights, a generated task. See --help.
set -euo pipefail

recipe=glue
export step=rehearse
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

architecture=bert
key_dims=8,2
epochs=6
train=4000
validation=500
seed=1

usage() {
    cat <<EOF
usage: recipes/glue/rehearse.sh [options]

Every step of recipes/glue/run.sh in minutes on one CPU core: a model of 2 layers and width 64 with random weights is
trained on a generated task with a rule, converted, trained again. It shows that the steps work, and nothing about GLUE.

  --architecture NAME  bert, distilbert or albert (default: $architecture)
  --key-dims LIST      (default: $key_dims; of 64)
  --epochs N           of either training (default: $epochs)
  --train N            sentences (default: $train)
  --validation N       sentences (default: $validation)
  --seed N             of the task, the model and the training (default: $seed)
  --output DIR         (default: runs/glue/rehearsal/<architecture>-seed<N>)
  --python PROGRAM     Python with the project and its extra huggingface (default: \$PYTHON, else python)

The same command continues an interrupted rehearsal. OUTPUT: input/ with task and model, and what run.sh leaves.
EOF
}

python=${PYTHON:-python}
output=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --*) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
        --architecture) architecture=$2 ;;
        --key-dims) key_dims=$2 ;;
        --epochs) epochs=$2 && need_number "$1" "$2" ;;
        --train) train=$2 && need_number "$1" "$2" ;;
        --validation) validation=$2 && need_number "$1" "$2" ;;
        --seed) seed=$2 && need_number "$1" "$2" ;;
        --output) output=$2 ;;
        --python) python=$2 ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
    shift 2
done

output=$(absolute "${output:-$root/runs/glue/rehearsal/$architecture-seed$seed}")
mkdir -p "$output"
keep_settings "$output/settings.txt" <<EOF
$architecture, $train + $validation sentences, seed $seed
EOF
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
if [ ! -d "$output/input" ]; then
    "$python" "$root/recipes/glue/rehearsal.py" --output "$output/input" --architecture "$architecture" --train "$train" \
        --validation "$validation" --seed "$seed" || die "task and model could not be made"
fi
exec "$root/recipes/glue/run.sh" --model "$output/input/model" --tasks toy --data "$output/input/data" --output "$output" \
    --key-dims "$key_dims" --seed "$seed" --python "$python" -- --epochs "$epochs" --lr 1e-3 --cpu
