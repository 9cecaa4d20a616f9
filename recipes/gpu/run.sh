#!/usr/bin/env bash
# Half an hour of one GPU: tests, speed, precisions, the main table; most valuable first. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

minutes=28 device=auto jobs='' seeds=1,2,3 wheels='' data=$root/data/multi30k source='' output=$root/runs/gpu python=${PYTHON:-python} quick=''

usage() {
    cat <<END
usage: recipes/gpu/run.sh [options]

Everything that waits for a GPU, most valuable first, each stage within its share of the time:

  tests       the layer, every kernel, decoding and the decomposition on the card, all types
  bench       collab bench layer, decode and train: float32, bfloat16 and float16; train in bfloat16 also compiled
  precisions  200 updates of Multi30k in fp32, bf16, fp16 and amp, and compiled
  table       the main table of recipes/multi30k, as many trainings at once as fit

  --minutes R       stop in time for this (default: $minutes)
  --wheels DIR      without internet: a folder of \`make wheelhouse TESTS=1\` to install from, into OUTPUT/venv; torch and
                    what else is missing there are those of the machine
  --data DIR        Multi30k as data_prep/multi30k.sh made it (default: data/multi30k; made where it does not exist)
  --source DIR      the corpus as downloaded, for that script
  --seeds N,N,...   of the main table (default: $seeds)
  --jobs N          trainings at a time (default: the number of cores less two, one for 3 GiB of the card, at most 12)
  --device NAME     auto, gpu or cpu (default: $device)
  --output DIR      (default: runs/gpu)
  --python PROGRAM  Python with the project installed, or with torch where --wheels is given (default: \$PYTHON, else python)
  --quick           miniatures of all stages: shows that everything runs, and measures nothing

The same command goes on with what was cut off; finished steps are skipped. OUTPUT holds page.md (what ran and what did
not), records/ (commit these), logs/ and the trainings.
END
}

started=$SECONDS
read_options "$@"
output=$(absolute "$output")
mkdir -p "$output/logs" "$output/records"
steps=()

left() { # seconds, but for those that the page takes
    echo $((minutes * 60 - 20 - (SECONDS - started)))
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

page() { # what ran, what did not, and the tables of the records
    local name records=() file
    {
        echo "# $("$python" -c 'import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU")')"
        echo
        for name in "${steps[@]}"; do echo "- $name: $(cat "$output/logs/$name.state" 2>/dev/null || echo "not begun")"; done
        for file in "$output"/runs/*/*/record.json; do
            [ -f "$file" ] || continue
            name=$(basename "$(dirname "$(dirname "$file")")")-$(basename "$(dirname "$file")")
            cp "$file" "$output/records/$name.json"
            case $name in table-*) records+=("$output/records/$name.json") ;; esac
        done
        if [ ${#records[@]} -gt 0 ]; then echo && "$scripts/collab" table "${records[@]}" || true; fi
        for name in "${types[@]}"; do
            records=("$output"/records/bench-*-"$name".json)
            if [ -f "${records[0]}" ]; then echo && "$scripts/collab" bench table "${records[@]}" || true; fi
        done
    } >"$output/page.md.tmp" 2>"$output/logs/page.log"
    mv "$output/page.md.tmp" "$output/page.md"
    cat "$output/page.md"
}

if [ -n "$wheels" ]; then
    wheels=$(absolute "$wheels")
    [ -f "$wheels/INSTALL.txt" ] || die "--wheels: $wheels is no folder of make wheelhouse"
    if ! finished install; then
        say "installing the wheels"
        rm -rf "$output/venv"
        "$python" -m venv "$output/venv"
        # not --system-site-packages: the machine's Python may be of a virtual environment itself
        "$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' \
            >"$(echo "$output"/venv/lib/python3*/site-packages)/machine.pth" || die "'$python' has no torch"
        "$output/venv/bin/python" -m pip install --quiet --no-index --no-deps "$wheels"/*.whl
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
print(max(1, min(12, (os.cpu_count() or 1) - 2, fit)))
PYTHON
)
data=$(absolute "$data")
case $device in gpu) card=cuda types=(bfloat16 float32 float16) tests=(-k cuda) ;; cpu) card=cpu types=(float32 bfloat16) tests=() ;; esac
trap page EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

bench=() size=(--config "$root/recipes/multi30k/table.sh") updates=200 longest=90
if [ -n "$quick" ]; then
    bench=(--quick) updates=10 longest=240 # on a busy CPU
    size+=(--updates 10 --warmup 5)
    tests=(-k cuda)
fi
recipe_flags=(--data "$data" --device "$device" --threads 1 --python "$python")

[ -d "$data/data-bin" ] || step data 300 "$root/data_prep/multi30k.sh" --output "$data" ${source:+--source "$source"} --python "$python"
step tests 150 "$python" -m pytest -q -p no:cacheprovider -m "not slow" "$root"/tests/unit/test_{attention,kernels,cache,reparam_solver}*.py \
    "$root"/tests/fairseq/test_decoding.py "${tests[@]}"
for what in train decode layer; do
    for dtype in "${types[@]}"; do
        step "bench-$what-$dtype" 100 "$scripts/collab" bench "$what" --device "$card" --dtype "$dtype" --seconds 4 \
            --json "$output/records/bench-$what-$dtype.json" "${bench[@]}"
    done
done
[ "$device" = cpu ] || step bench-compiled-bfloat16 240 "$scripts/collab" bench train --compile --device "$card" --dtype bfloat16 \
    --seconds 4 --json "$output/records/bench-compiled-bfloat16.json" "${bench[@]}"
for precision in fp32 bf16 fp16 amp compile; do
    flags=(--precision "$precision")
    case $precision in
        fp16) [ "$device" = gpu ] || continue ;;
        amp) flags=(--precision fp32 -- --amp) ;;
        compile) [ "$device" = gpu ] || continue && flags=(--precision bf16 -- --compile) ;;
    esac
    # without the sources of blind sets, which take longer to translate than so short a training
    step "precision-$precision" "$longest" env MULTI30K_DIR= "$root/recipes/multi30k/run.sh" "${recipe_flags[@]}" \
        --updates "$updates" --warmup "$updates" --output "$output/runs/precision/$precision" "${flags[@]}"
done
step table 3600 "$root/recipes/multi30k/sweep.sh" "${size[@]}" "${recipe_flags[@]}" ${source:+--source "$source"} \
    --seeds "$seeds" --jobs "$jobs" --output "$output/runs/table"
