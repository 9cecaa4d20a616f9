#!/usr/bin/env bash
# The whole job in minutes: a generated corpus, three small models, their scores side by side. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/toy/config.sh
. "$root/recipes/toy/config.sh"

seed=1 average=5 train=12000 valid=500 test=500 vocab_size=1500 device=auto

usage() {
    cat <<EOF
usage: recipes/demo/run.sh [options]

Make an English-German corpus from a grammar (data_prep/toy.py), train three small transformers on it at the same time
(standard heads at the full key dimension, standard and collaborative heads at a quarter of it; fewer at a time where
OMP_NUM_THREADS says so), average, translate, score, and show the results in a table, a figure and a few translations.

  --seed N          of the corpus and of the training (default: $seed)
  --updates N       length of each training (default: $updates)
  --warmup N        warm-up updates of the learning rate (default: $warmup)
  --average N       average the last N checkpoints (default: $average; there are $saves in a run)
  --train N         sentence pairs to train on (default: $train)
  --valid N         sentence pairs to validate on (default: $valid)
  --test N          sentence pairs to translate (default: $test)
  --vocab-size N    SentencePiece pieces, both languages together (default: $vocab_size)
  --output DIR      (default: runs/demo/seed<N>)
  --device NAME     auto, gpu or cpu (default: auto: one GPU where there is one)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)

The same command continues an interrupted demo; what is finished is skipped.
OUTPUT: data/, one folder per model as recipes/toy/run.sh leaves it, summary.md, validation.svg.
EOF
}

python=${PYTHON:-python}
output=
read_options "$@"
find_tools
demo=$(absolute "${output:-$root/runs/demo/seed$seed}")
mkdir -p "$demo"
# One demo at a time in a folder. The lock goes when the last process that inherited it ends: after a kill -9, too.
exec 9>>"$demo/.lock"
lock() { # try or wait
    "$python" -c 'import fcntl, sys; fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[1] == "try" else 0))' "$1" \
        2>/dev/null
}
lock try || {
    say "another demo, or what is left of one that was killed, is at work in $demo; waiting for its end"
    lock wait || die "$demo/.lock cannot be locked"
}

"$root/data_prep/toy.sh" --seed "$seed" --train "$train" --valid "$valid" --test "$test" --vocab-size "$vocab_size" \
    --output "$demo/data" --python "$python" || die "the corpus could not be made"
folders=()
for run in "${runs[@]}"; do folders+=("$demo/${run%%:*}-dk${run##*:}-s$seed-u$updates"); done

"$python" "$root/recipes/demo/progress.py" --updates "$updates" "${folders[@]}" 9>&- >&2 &
progress=$!
trap 'kill "$progress" 2>/dev/null || true' EXIT
jobs=${#runs[@]}
[ -z "${OMP_NUM_THREADS:-}" ] || [ "$(usable_cores)" -ge "$jobs" ] || jobs=$(usable_cores)
"$root/recipes/toy/sweep.sh" --jobs "$jobs" --seeds "$seed" --updates "$updates" --warmup "$warmup" --average "$average" \
    --threads 1 --device "$device" --data "$demo/data" --output "$demo" --python "$python" >/dev/null &
status=0
attend "$!" || status=$?
case $status in
    0) ;;
    75) say "interrupted; the same command goes on from here" && exit 130 ;;
    *)
        for folder in "${folders[@]}"; do [ -f "$folder/.done/record" ] || tail -n 8 "$folder/messages.txt" >&2 2>/dev/null || true; done
        die "not all models are finished (see above); the same command goes on from here"
        ;;
esac
wait "$progress" || true
"$python" "$root/recipes/demo/summary.py" --folder "$demo" "${folders[@]##*/}"
