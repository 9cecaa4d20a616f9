#!/usr/bin/env bash
# Every script of this recipe on a miniature archive, with a kill in the middle. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/options.sh
. "$root/recipes/lib/options.sh"
title=rehearsal
here=$root/recipes/wmt14_en_de
output=$root/runs/wmt14_en_de.rehearsal
python=${PYTHON:-python}
train=12000
test=200
updates=300
runs=
by_hand=

usage() {
    cat <<EOF
usage: recipes/wmt14_en_de/rehearse.sh [--output DIR] [--updates N] [--train N] [--test N] [--runs "A:N ..."]
                                        [--python PROGRAM] [--by-hand]

Rehearse the recipe on this machine, without GPU or internet: make a miniature of the public archive, binarise it, train
a small model in two CPU processes, kill it in the middle and go on, average, translate, score both ways, then two more
models and the table of the three. The settings are in recipes/wmt14_en_de/rehearsal.sh. The text is made up: its BLEU
means nothing beyond this table.

  --output DIR      (default: runs/wmt14_en_de.rehearsal)
  --updates N       length of each training (default: $updates)
  --train N         sentence pairs to train on (default: $train)
  --test N          sentence pairs to validate on and to translate (default: $test)
  --runs "A:N ..."  as for sweep.sh, the first none:64 (default: those of rehearsal.sh)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)
  --by-hand         only make the archive, and print what the shell must know for the commands of README.md to work on it:
                    eval "\$(recipes/wmt14_en_de/rehearse.sh --by-hand)"

The same command goes on where it was interrupted; finished steps are skipped.
EOF
}

read_options "$@"
[ "$updates" -ge 10 ] || die "--updates must be at least 10, one for each checkpoint, got $updates"

if [ "$by_hand" = yes ]; then output=$root/data/wmt16_en_de.rehearsal; fi # where rehearsal.sh looks
mkdir -p "$output"
output=$(cd "$output" && pwd)
miniature=$output/miniature data=$output/data

if [ ! -d "$miniature" ]; then
    say "making a miniature of wmt16_en_de.tar.gz"
    "$python" "$root/data_prep/miniature.py" wmt16_en_de --train "$train" --valid "$test" --test "$test" --output "$miniature"
fi
if [ "$by_hand" = yes ]; then
    printf 'export %s=%q\n' RECIPE_CONFIG "$here/rehearsal.sh" WMT16_EN_DE_ARCHIVE "$miniature/wmt16_en_de.tar.gz" \
        WMT16_EN_DE_MANIFEST "$miniature/manifest.tsv" WMT16_EN_DE_OUTPUT "$data"
    exit 0
fi
"$root/data_prep/wmt16_en_de.sh" --archive "$miniature/wmt16_en_de.tar.gz" --manifest "$miniature/manifest.tsv" \
    --output "$data" --python "$python"

export RECIPE_CONFIG=$here/rehearsal.sh
run=$output/none-dk64-s1-u$updates # the first run of the sweep
common=(--data "$data" --reference "$miniature/references.de" --updates "$updates" --warmup $((updates / 5)) --python "$python")
first=(--heads none --key-dim 64 --output "$run" "${common[@]}")

kill_all() { # PID: it and all that it has started, at once
    local parent=$1 child
    kill -STOP "$parent" 2>/dev/null || return 0 # it starts nothing any more
    for child in $(ps -A -o pid=,ppid= | awk -v parent="$parent" '$2 == parent { print $1 }'); do kill_all "$child"; done
    kill -KILL "$parent"
}

if [ ! -f "$run/killed" ] && [ ! -f "$run/.done/train" ]; then
    killed=$((5 * (updates / 12 > 0 ? updates / 12 : 1))) # of twelve checkpoints in a run (rehearsal.sh), in its second stage
    say "training the first model, to be killed after $killed updates"
    mkdir -p "$run"
    "$here/train.sh" "${first[@]}" >"$run/first_part.txt" 2>&1 &
    training=$!
    trap 'kill_all "$training"' EXIT
    until compgen -G "$run/checkpoints/checkpoint_*_$killed.pt" >/dev/null; do
        kill -0 "$training" 2>/dev/null || { tail -n 5 "$run/first_part.txt" >&2 && die "the training ended too early"; }
        sleep 0.1
    done
    trap - EXIT
    kill_all "$training"
    wait "$training" 2>/dev/null || true
    : >"$run/killed"
    say "killed (SIGKILL); the same command goes on"
fi
"$here/train.sh" "${first[@]}"
"$here/average.sh" "${first[@]}"
"$here/evaluate.sh" "${first[@]}"
say "the sweep: this model and the others"
"$here/sweep.sh" --output "$output" ${runs:+--runs "$runs"} "${common[@]}"
say "done: $output/table.md"
