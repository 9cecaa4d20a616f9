#!/usr/bin/env bash
# See, rank, prune and gate the heads of one trained translation model: all analyses of `collab heads`. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/lib/trained.sh
. "$root/recipes/lib/trained.sh"

penalties=0,0.01,0.03,0.1
gate_sites=encoder_cross_decoder
gate_updates=1000
seed=1
threads=1
# the rate falls to zero along a line: gates need a high one to get anywhere, the weights a low one in the end
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 0.006 --lr-scheduler polynomial_decay
    --criterion label_smoothed_cross_entropy_with_gates --label-smoothing 0.1 --max-tokens 2048)

usage() {
    cat <<EOF
usage: recipes/heads/run.sh --model CHECKPOINT --data DIR --name NAME --reference SPLIT=FILE [options]

Analyse the heads of a trained translation model: redundancy, importance, ablation (each head without, and alone) with
paired bootstrap, pruning curves, roles and attention maps; then train it on with stochastic gates at several penalties,
and score what they leave.

  --model FILE      checkpoint of fairseq's transformer or of transformer_collab
  --data DIR        its data-bin (data_prep/multi30k.sh --spm FILE --dict FILE makes one for a given model)
  --name NAME       of the model in records, tables and figures
  --reference SPLIT=FILE
                    a test split and its raw references, such as test=test_2016_flickr.de; repeatable; with two of them
                    their ablations are correlated
  --sentences N     translate only the first N of each test split in ablation and pruning (default: all)
  --parses FILE     CoNLL-U of the validation set's source side, for syntactic heads
  --maps N,N        draw the attention of these sentences of the validation set (default: 0)
  --penalties X,X   gate penalties λ; 0 is the same training without a penalty (default: $penalties; none: no gates)
  --gate-sites SITES
                    where the gates are (default: $gate_sites; encoder alone freezes the decoder)
  --gate-updates N  length of each training with gates (default: $gate_updates)
  --device NAME     cpu or gpu (default: gpu if any)
  --seed N          (default: $seed)
  --threads N       CPU threads (default: $threads)
  --output DIR      (default: runs/heads/NAME)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)

The same command continues an interrupted run; what is finished is skipped.
OUTPUT: NAME.redundancy.json, NAME.importance.json, NAME.ablate.json, NAME.prune.json, NAME.prune-raw.json, NAME.roles.json,
NAME.gates.json (the records), NAME.*.svg (figures made from them), table.md, gates/ with the trainings, maps/.
One page of several models:
  python recipes/heads/page.py FOLDER... --output README.md
EOF
}

python=${PYTHON:-python}
model='' data='' name='' output='' parses='' maps=0 sentences=''
read_options "$@"
tests=("${split_files[@]}") limit=(${sentences:+--sentences "$sentences"})
[ ${#tests[@]} -gt 0 ] || die "--reference is needed (see --help)"
case $penalties in none) ;; '' | *[!0-9.,]*) die "--penalties must be numbers such as 0.01,0.03, got '$penalties'" ;; esac
[ -z "$parses" ] || [ -f "$parses" ] || die "there is no file $parses"
open_trained
find_device
mkdir -p "$output/maps" "$output/gates"
keep_settings "$output/settings.txt" <<EOF
name $name
model $model_sum
seed $seed
gates $gate_sites, $gate_updates updates
limit ${limit[*]}
EOF
export OMP_NUM_THREADS=$threads
machine=(--device "${device/gpu/cuda}" --threads "$threads")

heads() { # STEP ARGUMENTS: the analysis that the step begins with; what it prints goes to a file
    local step=$1
    shift
    if finished "$step"; then return; fi
    say "$step"
    "$scripts/collab" heads "${step%%-*}" "$model" "$@" --json "$output/$name.$step.json" \
        --figure "$output/$name.$step.svg" >"$output/$step.md.tmp" || die "the analysis '$step' failed (see above)"
    mv "$output/$step.md.tmp" "$output/$step.md"
    finish "$step"
}

heads redundancy
if grep -q '"collaborative": true' "$output/$name.redundancy.json" && ! finished overlap; then
    "$scripts/collab" heads redundancy "$model" --json "$output/$name.redundancy.json" \
        --overlap "$output/$name.overlap.svg" >/dev/null || die "the overlap could not be drawn (see above)"
    finish overlap
fi
heads importance --data "$data" "${machine[@]}"
heads ablate --data "$data" "${machine[@]}" "${tests[@]}" "${limit[@]}"
pruning=(--data "$data" "${machine[@]}" "${tests[@]}" --importance "$output/$name.importance.json")
heads prune "${pruning[@]}" --by-site "${limit[@]}"
heads prune-raw "${pruning[@]}" --ranking raw "${limit[@]}"
heads roles --data "$data" "${machine[@]}" --importance "$output/$name.importance.json" --maps "$maps" \
    --maps-folder "$output/maps" ${parses:+--parses "$parses"}

train_gates() { # PENALTY FOLDER
    local freeze=()
    say "training with gates, penalty $1, $gate_updates updates"
    [ "$gate_sites" != encoder ] || freeze=(--head-gates-freeze-decoder)
    train_on "$model" "$2" "$gate_updates" "${optimisation_flags[@]}" --total-num-update "$gate_updates" \
        --warmup-updates $((gate_updates / 10)) "${device_flags[@]}" --head-gates "$gate_sites" --gate-penalty "$1" \
        "${freeze[@]}" --save-interval-updates 200 --log-interval 50
}

if [ "$penalties" != none ]; then
    for penalty in ${penalties//,/ }; do
        folder=$output/gates/penalty-$penalty
        finished "gates-$penalty" || train_gates "$penalty" "$folder"
        finish "gates-$penalty"
        ! finished "score-$penalty" || continue
        "$python" "$root/recipes/heads/gates.py" "$folder/checkpoint_last.pt" --model "$model" --data "$data" \
            "${machine[@]}" "${tests[@]}" "${limit[@]}" --penalty "$penalty" --updates "$gate_updates" \
            --finalised "$folder/finalised.pt" --json "$output/$name.gates.json" --figure "$output/$name.gates.svg" \
            >"$output/gates.md" || die "scoring failed (see above)"
        finish "score-$penalty"
    done
fi
"$python" "$root/recipes/heads/page.py" "$output" --output "$output/table.md"
say "results: $output/table.md, $name.*.json, $name.*.svg, maps/"
