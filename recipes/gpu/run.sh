#!/usr/bin/env bash
# Half an hour of one GPU, in three calls: truth, speed, learning. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

minutes='' call=all device=auto jobs='' seeds=1 wheels='' data=$root/data/multi30k source='' output=$root/runs/gpu python=${PYTHON:-python}
declare -A share=([truth]=8 [speed]=9 [learning]=9) # minutes

usage() {
    cat <<END
usage: recipes/gpu/run.sh [options]

What waits for a GPU, in three calls of less than ten minutes each:

  truth       8 min: probe.py, what the card and torch can do; the tests on the card; 150 updates of a base model in every precision
  speed       9 min: collab bench train, layer and decode in bfloat16 and float16, and compiled
  learning    9 min and what the others have left: the trainings of recipes/curve, as many at once as fit

  --call NAME       truth, speed, learning, or all: one after the other (default: $call)
  --minutes R       stop in time for this (default: those of the call)
  --wheels DIR      without internet: a folder of wheels (docs/install.md) to install from, into OUTPUT/venv; torch and what
                    else is missing there are those of the machine
  --data DIR        Multi30k as data_prep/multi30k.sh made it (default: data/multi30k; made where it does not exist)
  --source DIR      the corpus as downloaded, for that script
  --seeds N,N,...   of the trainings of learning (default: $seeds)
  --jobs N          trainings at a time (default: the number of cores less two, one for 3 GiB of the card, at most 12)
  --device NAME     auto, gpu or cpu (default: $device)
  --output DIR      (default: runs/gpu)
  --python PROGRAM  Python with the project installed, or with torch where --wheels is given (default: \$PYTHON, else python)

The same command goes on with what was cut off; finished steps are skipped. OUTPUT holds page.md (what ran and what did
not), records/ (commit these), logs/ and the trainings.
END
}

started=$SECONDS
read_options "$@"
case $call in
    all) calls=(truth speed learning) ;;
    truth | speed | learning) calls=("$call") ;;
    *) die "--call must be truth, speed, learning or all, got '$call'" ;;
esac
whole=0
for name in "${calls[@]}"; do whole=$((whole + 60 * share[$name])); done
[ -z "$minutes" ] || need_number --minutes "$minutes" 0
seconds=$((60 * ${minutes:-$((whole / 60))}))
output=$(absolute "$output")
mkdir -p "$output/logs" "$output/records"
steps=()

deadline=0
begin() { # CALL: from now on steps have the time up to its end; each call gets its share, whatever those before have left
    before=$((${before:-0} + 60 * share[$1]))
    deadline=$((seconds * before / whole))
}

left() { # seconds, but for those that the page takes
    echo $((deadline - 20 - (SECONDS - started)))
}

step() { # NAME SECONDS COMMAND...: for at most so long; what is cut off goes on next time
    local name=$1 limit=$2 status=0 begun=$SECONDS
    shift 2
    steps+=("$name")
    finished "$name" && return
    [ "$limit" -le "$(left)" ] || limit=$(left)
    [ "$limit" -ge 5 ] || return 0
    say "$name: at most $limit s, see logs/$name.log"
    printf '%q ' "$@" >>"$output/logs/$name.log"
    echo >>"$output/logs/$name.log"
    timeout --kill-after=20 "$limit" "$@" >>"$output/logs/$name.log" 2>&1 || status=$?
    case $status in # a training that is asked to stop saves, and ends with 75
        0) echo finished && finish "$name" ;;
        75 | 124 | 137) echo "cut off" ;;
        *) echo "failed with status $status" ;;
    esac >"$output/logs/$name.state"
    say "$name: $(cat "$output/logs/$name.state") after $((SECONDS - begun)) s"
}

show() { # COMMAND of collab: a table, or nothing where it cannot be made
    echo
    "$scripts/collab" "$@" || true
}

page() { # what ran, what did not, and the tables of the records
    local name records=() file
    {
        echo "# $("$python" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU")')"
        echo
        for name in "${steps[@]}"; do
            echo "- $name: $(cat "$output/logs/$name.state" 2>/dev/null || echo "not begun")" \
                "$(grep -o '"loss": "[^"]*".*"wps": "[^"]*"' "$output/logs/$name.log" 2>/dev/null | tail -n 1)"
        done
        for file in "$output"/runs/*/*/record.json; do
            [ -f "$file" ] || continue
            name=$(basename "$(dirname "$(dirname "$file")")")-$(basename "$(dirname "$file")")
            cp "$file" "$output/records/$name.json"
            case $name in curve-*) records+=("$output/records/$name.json") ;; esac
        done
        if [ ${#records[@]} -gt 0 ]; then show table "${records[@]}"; fi
        for name in "${types[@]}" compiled; do
            records=("$output"/records/bench-*-"$name".json)
            if [ -f "${records[0]}" ]; then show bench table "${records[@]}"; fi
        done
    } >"$output/page.md.tmp" 2>"$output/logs/page.log"
    mv "$output/page.md.tmp" "$output/page.md"
    cat "$output/page.md"
}

if [ -n "$wheels" ]; then
    wheels=$(absolute "$wheels")
    [ -n "$(find "$wheels" -name '*.whl' 2>/dev/null)" ] || die "--wheels: there are no wheels in $wheels"
    if ! finished install; then
        say "installing the wheels"
        rm -rf "$output/venv"
        "$python" -m venv --without-pip "$output/venv" # which would need ensurepip
        # not --system-site-packages: the machine's Python may be of a virtual environment itself
        "$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' \
            >"$(echo "$output"/venv/lib/python3*/site-packages)/machine.pth" || die "'$python' has no torch"
        "$python" -m pip --python "$output/venv/bin/python" install --quiet --no-index --no-deps "$wheels"/*.whl
        finish install
    fi
    python=$output/venv/bin/python
    export PYTHONPATH=$root # this checkout, whatever the wheels were made from
fi
find_tools
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0} # the recipes would share a batch among all cards
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES%%,*}
find_device
[ -n "$jobs" ] || jobs=$("$python" - "$device" <<'PYTHON'
import os
import sys

import torch

fit = torch.cuda.get_device_properties(0).total_memory // (3 << 30) if sys.argv[1] == "gpu" else 12
print(max(1, min(12, len(os.sched_getaffinity(0)) - 2, fit)))
PYTHON
)
data=$(absolute "$data")
case $device in gpu) card=cuda types=(bfloat16 float16) ;; cpu) card=cpu types=(float32) ;; esac
trap page EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

recipe_flags=(--data "$data" --device "$device" --threads 1 --python "$python")

base() { # NAME FLAGS...: 150 updates of a base model; its speed and losses are in the log
    step "base-$1" 45 "$scripts/fairseq-train" "$data/data-bin" --user-dir "$root/collab_fairseq" --arch transformer_collab --key-dim 128 \
        --share-all-embeddings --optimizer adam --adam-betas '(0.9, 0.98)' --lr 0.0005 --lr-scheduler inverse_sqrt --warmup-updates 150 \
        --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 3584 --max-update 150 --seed 1 --no-save \
        --disable-validation --log-format json --log-interval 25 "${device_flags[@]}" "${@:2}"
}

bench() { # WHAT NAME TYPE FLAGS...: rows of collab bench, each kept as soon as it is measured
    step "bench-$1-$2" 90 "$scripts/collab" bench "$1" --device "$card" --dtype "$3" --seconds 3 \
        --json "$output/records/bench-$1-$2.json" "${@:4}"
}

truth() {
    [ -d "$data/data-bin" ] || step data 200 "$root/data_prep/multi30k.sh" --output "$data" ${source:+--source "$source"} --python "$python"
    step probe 90 "$python" "$root/recipes/gpu/probe.py" --device "$card"
    step tests 150 "$python" -m pytest -q -p no:cacheprovider -m "not slow" -k cuda "$root/tests/unit" "$root/tests/fairseq"
    local fast=(--criterion label_smoothed_cross_entropy_chunked --optimizer fused_adam) half=() flags
    [ "$device" = cpu ] || half=(--bf16)
    base adam "${half[@]}"
    base fast "${half[@]}" "${fast[@]}"
    for flags in fp16 amp; do [ "$device" = cpu ] || base "$flags" "--$flags" "${fast[@]}"; done
    base large "${half[@]}" "${fast[@]}" --max-tokens 28672
}

speed() {
    local type
    for type in "${types[@]}"; do
        bench train "$type" "$type"
        bench layer "$type" "$type" --rows '*/64x32/dk128/*' --rows '*/4x512/dk128/*'
        bench decode "$type" "$type" --rows '*dk128*'
    done
    bench train compiled "${types[0]}" --compile --rows '*/tiny/*'
}

learning() { # which alone has the machine, for all the time that is left
    step curve "$seconds" "$root/recipes/curve/sweep.sh" "${recipe_flags[@]}" --seeds "$seeds" --jobs "$jobs" --output "$output/runs/curve"
}

for name in "${calls[@]}"; do
    begin "$name"
    "$name"
done
