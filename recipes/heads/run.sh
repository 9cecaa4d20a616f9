#!/usr/bin/env bash
# See, rank, prune and gate the heads of one trained translation model: all analyses of `collab heads`. See --help.
set -euo pipefail

recipe=heads
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

gate_penalties=0,0.003,0.01,0.03
gate_sites=encoder_cross_decoder
gate_updates=2000
seed=1
threads=1
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 0.002 --lr-scheduler fixed
    --criterion label_smoothed_cross_entropy_with_gates --label-smoothing 0.1 --max-tokens 4096)

usage() {
    cat <<EOF
usage: recipes/heads/run.sh --model CHECKPOINT --data DIR --name NAME --test SPLIT=FILE [options]

Analyse the heads of a trained translation model: redundancy, importance, ablation (each head without, and alone) with
paired bootstrap, pruning curves, roles and attention maps; then train it on with stochastic gates at several penalties,
and score what they leave.

  --model FILE      checkpoint of fairseq's transformer or of transformer_collab
  --data DIR        its data-bin (data_prep/multi30k.sh --spm FILE --dict FILE makes one for a given model)
  --name NAME       of the model in records, tables and figures
  --test SPLIT=FILE a test split and its raw references, such as test=test_2016_flickr.de; repeatable; with two of them
                    their ablations are correlated
  --sentences N     translate only the first N of each test split in ablation and pruning (default: all)
  --parses FILE     CoNLL-U of the validation set's source side, for syntactic heads
  --maps N,N        draw the attention of these sentences of the validation set (default: 0)
  --penalties X,X   gate penalties λ; 0 is the same training without a penalty (default: $gate_penalties; none: no gates)
  --gate-sites SITES
                    where the gates are (default: $gate_sites; encoder alone freezes the decoder)
  --gate-updates N  length of each training with gates (default: $gate_updates)
  --device NAME     cpu or gpu (default: gpu if any)
  --seed N          (default: $seed)
  --threads N       CPU threads (default: $threads)
  --output DIR      (default: runs/heads/NAME)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)

The same command continues an interrupted run; what is finished is skipped.
OUTPUT: NAME.redundancy.json, NAME.importance.json, NAME.ablate.json, NAME.prune.json, NAME.roles.json, NAME.gates.json (the
records), NAME.*.svg (figures made from them), table.md, gates/ with the trainings, maps/. One page of several models:
  python recipes/heads/page.py FOLDER... --output README.md --marker heads
EOF
}

python=${PYTHON:-python}
model='' data='' name='' output='' parses='' maps=0
tests=() limit=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --*) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
        --model) model=$2 ;;
        --data) data=$2 ;;
        --name) name=$2 ;;
        --test)
            [ -f "${2#*=}" ] && [ "$2" != "${2#*=}" ] || die "--test must be SPLIT=FILE, got '$2'"
            tests+=(--test "${2%%=*}=$(absolute "${2#*=}")")
            ;;
        --sentences) limit=(--sentences "$2") && need_number "$1" "$2" ;;
        --parses) parses=$2 ;;
        --maps) maps=$2 ;;
        --penalties) gate_penalties=$2 ;;
        --gate-sites) gate_sites=$2 ;;
        --gate-updates) gate_updates=$2 && need_number "$1" "$2" ;;
        --device) device=$2 ;;
        --seed) seed=$2 && need_number "$1" "$2" ;;
        --threads) threads=$2 && need_number "$1" "$2" ;;
        --output) output=$2 ;;
        --python) python=$2 ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
    shift 2
done
[ -n "$model" ] && [ -n "$data" ] && [ -n "$name" ] && [ ${#tests[@]} -gt 0 ] ||
    die "--model, --data, --name and --test are needed (see --help)"
case $name in *[!A-Za-z0-9_-]*) die "--name must be made of letters, digits, _ and -, got '$name'" ;; esac
case $gate_penalties in none) ;; '' | *[!0-9.,]*) die "--penalties must be numbers such as 0.003,0.01, got '$gate_penalties'" ;; esac
[ -f "$model" ] || die "there is no checkpoint $model"
[ -d "$data" ] || die "there is no data-bin $data"
[ -z "$parses" ] || [ -f "$parses" ] || die "there is no file $parses"
find_tools
find_device
model=$(absolute "$model") data=$(absolute "$data") output=$(absolute "${output:-$root/runs/heads/$name}")
mkdir -p "$output/maps" "$output/gates"
keep_settings "$output/settings.txt" <<EOF
name $name
model $(sha256sum "$model" | cut -c1-64)
seed $seed
gates $gate_sites, $gate_updates updates
limit ${limit[*]-}
EOF
export OMP_NUM_THREADS=$threads
machine=(--device "${device/gpu/cuda}" --threads "$threads")

heads() { # ANALYSIS ARGUMENTS: printed tables go to a file, which a finished step has
    local what=$1
    shift
    if finished "$what"; then return; fi
    say "$what"
    "$scripts/collab" heads "$what" "$model" "$@" --output "$output/$name.$what.json" \
        --figure "$output/$name.$what.svg" >"$output/$what.md.tmp" || die "the analysis '$what' failed (see above)"
    mv "$output/$what.md.tmp" "$output/$what.md"
    finish "$what"
}

overlap=()
if ! finished redundancy && [ -n "$("$python" "$root/recipes/heads/gates.py" collaborative "$model")" ]; then
    overlap=(--overlap "$output/$name.overlap.svg")
fi
heads redundancy ${overlap[@]+"${overlap[@]}"}
heads importance --data "$data" "${machine[@]}"
heads ablate --data "$data" "${machine[@]}" "${tests[@]}" ${limit[@]+"${limit[@]}"}
heads prune --data "$data" "${machine[@]}" "${tests[@]}" --importance "$output/$name.importance.json" --by-site \
    ${limit[@]+"${limit[@]}"}
heads roles --data "$data" "${machine[@]}" --importance "$output/$name.importance.json" --maps "$maps" \
    --maps-folder "$output/maps" ${parses:+--parses "$parses"}

train_gates() { # PENALTY FOLDER
    local status=0 freeze=()
    say "training with gates, penalty $1, $gate_updates updates"
    [ "$gate_sites" != encoder ] || freeze=(--head-gates-freeze-decoder)
    "$scripts/fairseq-train" "$data" --task translation --user-dir "$("$scripts/collab" user-dir)" "${flags[@]}" \
        --attention-from "$model" --finetune-from-model "$model" "${optimisation_flags[@]}" "${device_flags[@]}" \
        --head-gates "$gate_sites" --gate-penalty "$1" ${freeze[@]+"${freeze[@]}"} --num-workers 0 --seed "$seed" \
        --max-update "$gate_updates" --save-dir "$2" --no-epoch-checkpoints --save-interval-updates 200 \
        --keep-interval-updates 1 --log-format json --log-interval 50 >>"$2.log" 2>&1 &
    attend $! || status=$?
    [ "$status" -eq 0 ] || die "the training failed or was stopped, see $2.log; run again to continue"
}

if [ "$gate_penalties" != none ]; then
    mapfile -t flags < <("$python" "$root/recipes/reparam/finetune.py" flags "$model")
    [ ${#flags[@]} -gt 0 ] || die "the sizes of $model could not be read"
    for penalty in ${gate_penalties//,/ }; do
        folder=$output/gates/penalty-$penalty
        finished "gates-$penalty" || train_gates "$penalty" "$folder"
        finish "gates-$penalty"
        ! finished "score-$penalty" || continue
        "$python" "$root/recipes/heads/gates.py" score "$folder/checkpoint_last.pt" --model "$model" --data "$data" \
            "${machine[@]}" "${tests[@]}" ${limit[@]+"${limit[@]}"} --penalty "$penalty" --updates "$gate_updates" \
            --finalised "$folder/finalised.pt" --output "$output/$name.gates.json" || die "scoring failed (see above)"
        finish "score-$penalty"
    done
fi
"$python" "$root/recipes/heads/page.py" "$output" --output "$output/table.md"
say "results: $output/table.md, $name.*.json, $name.*.svg, maps/"
