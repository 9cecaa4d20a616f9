#!/usr/bin/env bash
# The whole job in minutes: a generated corpus, three small models, their scores side by side. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/lib/train.sh
. "$root/recipes/lib/train.sh"
# shellcheck source=recipes/lib/evaluate.sh
. "$root/recipes/lib/evaluate.sh"
# shellcheck source=recipes/demo/config.sh
. "$root/recipes/demo/config.sh"

usage() {
    cat <<EOF
usage: recipes/demo/run.sh [options]

Make an English-German corpus from a grammar (data_prep/toy.py), train three small transformers on it at the same time
(standard heads at the full key dimension, standard and collaborative heads at a quarter of it), average, translate,
score, and show the results in a table, a figure and a few translations.

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
OUTPUT: data/, one folder per model as recipes/multi30k leaves it, summary.md, validation.svg.
EOF
}

command_line="recipes/demo/run.sh $*"
python=${PYTHON:-python}
output=
read_options "$@"

find_tools
find_device
demo=$(absolute "${output:-$root/runs/demo/seed$seed}")
data=$demo/data
data_bin=$data/data-bin
save_interval=$((updates / saves > 0 ? updates / saves : 1))
user_dir_flags=(--user-dir "$("$scripts/collab" user-dir)")
optimisation_flags+=(--warmup-updates "$warmup")

mkdir -p "$demo"
# One demo at a time in a folder. The lock goes when the last process that inherited it ends: after a kill -9, too.
exec 9>>"$demo/.lock"
lock() {
    "$python" -c 'import fcntl, sys; fcntl.flock(9, fcntl.LOCK_EX | (fcntl.LOCK_NB if sys.argv[1] == "try" else 0))' "$1" \
        2>/dev/null
}
lock try || {
    say "another demo, or what is left of one that was killed, is at work in $demo; waiting for its end"
    lock wait || die "$demo/.lock cannot be locked"
}

output=$demo
keep_settings "$demo/settings.txt" <<EOF
seed $seed, $train + $valid + $test sentence pairs, $vocab_size pieces
models ${models[*]}
$updates updates, average $average every $save_interval updates, device $device
$arch ${shared_model_flags[*]}
${optimisation_flags[*]}
${generation_flags[*]}
EOF

end_with_demo() { # in a job: end the whole job, by force, when the demo itself has been killed
    set +e
    while kill -0 "$$" 2>/dev/null; do sleep 1; done
    kill -KILL 0
}

step() { # NAME, in a job: what the progress display shows
    echo "$model $1" >&8 || true
} 2>/dev/null

run_model() { # NAME HEADS KEY_DIM, as a job of its own: a process group, so that it can be ended as a whole
    set +m
    trap - INT
    trap 'exit 143' TERM
    trap : PIPE # a display that has ended ends nothing else
    end_with_demo 8>&- 9>&- >/dev/null 2>&1 &
    watch=$! model=$1 reached=failed
    # 75: a training that was asked to stop
    trap 'case $? in 75 | 143) reached=interrupted ;; esac; step "$reached"; kill "$watch" 2>/dev/null' EXIT
    output=$demo/$1
    run_name=$recipe-$1-s$seed-u$updates
    model_flags=("${user_dir_flags[@]}" --arch "$arch" --collaborative-heads "$2" --key-dim "$3" "${shared_model_flags[@]}")
    mkdir -p "$output"
    step training
    train
    step averaging
    average
    step translating
    translate
    step scoring
    finished score || { score >"$output/scores.txt" && finish score; }
    record
    reached=finished
}

jobs=()
stop() { # whatever ends the demo ends its jobs
    local status=$? job
    trap - EXIT INT TERM
    for job in "${jobs[@]}"; do kill -TERM -- "-$job" 2>/dev/null || true; done
    wait || true
    exit "$status"
}
trap stop EXIT
trap 'say "interrupted; the same command goes on from here"; exit 130' INT
trap 'exit 143' TERM

"$root/data_prep/toy.sh" --seed "$seed" --train "$train" --valid "$valid" --test "$test" --vocab-size "$vocab_size" \
    --output "$data" --python "$python" || die "the corpus could not be made"
names=("${models[@]%%:*}")
waiting=()
for model in "${models[@]}"; do
    if output=$demo/${model%%:*} finished record; then say "${model%%:*}: done before"; else waiting+=("$model"); fi
done

if [ ${#waiting[@]} -gt 0 ]; then
    # it ends when the last job has closed its input
    exec 8> >(exec "$python" "$root/recipes/demo/progress.py" --updates "$updates" --folder "$demo" "${names[@]}" 9>&- >&2)
    progress=$!
    set -m
    for model in "${waiting[@]}"; do
        IFS=: read -r name heads key_dim <<<"$model"
        mkdir -p "$demo/$name"
        run_model "$name" "$heads" "$key_dim" </dev/null >"$demo/$name/messages.txt" 2>&1 &
        jobs+=($!)
    done
    set +m
    exec 8>&-
    failed=
    for index in "${!jobs[@]}"; do
        wait "${jobs[index]}" || failed="$failed ${waiting[index]%%:*}"
    done
    jobs=()
    wait "$progress" || true
    for name in $failed; do tail -n 8 "$demo/$name/messages.txt" >&2; done
    [ -z "$failed" ] || die "not finished:$failed (see messages.txt in $demo); the same command goes on from here"
fi

"$python" "$root/recipes/demo/summary.py" --folder "$demo" "${names[@]}"
