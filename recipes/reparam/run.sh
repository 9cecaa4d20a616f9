#!/usr/bin/env bash
# What it costs a trained translation model to get collaborative heads, with and without fine-tuning. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/lib/trained.sh
. "$root/recipes/lib/trained.sh"

finetune_updates=300
threads=1
finetune_method=calibrated
seed=1
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --lr 0.0005 --warmup-updates 30
    --lr-scheduler polynomial_decay --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2048)

usage() {
    cat <<EOF
usage: recipes/reparam/run.sh --model CHECKPOINT --data DIR --name NAME [options] [-- OPTIONS of study.py ...]

Convert a trained fairseq transformer at several key dims: the paper's method (TensorLy) beside ours, plain, with
calibration text, with the rank spread over the layers, and distilled without labels; three seeds; loss, BLEU and time.
Then fine-tune converted models, and the unchanged one for comparison. Needs the extras reparam (for the paper's method)
and plots of this project.

  --model FILE      checkpoint of fairseq's transformer
  --data DIR        its data-bin (data_prep/multi30k.sh --spm FILE --dict FILE makes one for a given model)
  --name NAME       of the model in records, tables and figures
  --reference SPLIT=FILE
                    raw references of a test split, such as test=test_2016_flickr.de (default: the data-bin's own);
                    repeatable
  --finetune-updates R
                    length of each fine-tuning, its rate falling to zero (default: $finetune_updates; 0: none)
  --finetune-method METHOD
                    which converted models are fine-tuned: calibrated or distilled (default: $finetune_method)
  --seed N          of the fine-tuning (default: $seed)
  --threads N       CPU threads (default: $threads)
  --output DIR      (default: runs/reparam/NAME)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)

Options of study.py: --methods, --ranks, --bleu-ranks, --seeds, --sentences, --distill, ... (see its --help).
The same command continues an interrupted run; what is finished is skipped.
OUTPUT: NAME.json (the record), table.md, time.svg and quality.svg (Figures 4 and 5 of the paper) made from it, converted
and fine-tuned checkpoints. Several models in one table and figure:
  python recipes/reparam/report.py OUTPUT/*.json OUTPUT2/*.json --table table.md --time time.svg --quality quality.svg
EOF
}

python=${PYTHON:-python}
model='' data='' name='' output=''
read_options "$@"
references=("${split_files[@]}") study_flags=("${rest[@]}")
open_trained
keep_settings "$output/settings.txt" <<EOF
name $name
model $model_sum
seed $seed
finetune_updates $finetune_updates
finetune_method $finetune_method
study ${study_flags[*]}
EOF
export OMP_NUM_THREADS=$threads

study() { # FLAGS that do not change what is there
    "$python" "$root/recipes/reparam/study.py" --name "$name" --model "$model" --data "$data" --output "$output" \
        --threads "$threads" "${references[@]}" "${study_flags[@]}" "$@" || die "the study was not finished (see above)"
}

finished study || study
finish study
if [ "$finetune_updates" -gt 0 ] && ! finished finetune; then
    mkdir -p "$output/finetuned"
    tuned=()
    for checkpoint in "$output/$name-full.pt" "$output/$name-$finetune_method-"*.pt; do
        run=$(basename "$checkpoint" .pt)
        say "fine-tuning $run for $finetune_updates updates"
        train_on "$checkpoint" "$output/finetuned/$run" "$finetune_updates" "${optimisation_flags[@]}" --total-num-update \
            "$finetune_updates" --cpu --distributed-world-size 1 --save-interval-updates 50 --log-interval 25
        tuned+=("$output/finetuned/$run/checkpoint_last.pt")
    done
    study --finetuned "${tuned[@]}"
    finish finetune
fi
"$python" "$root/recipes/reparam/report.py" "$output/$name.json" --table "$output/table.md" --time "$output/time.svg" \
    --quality "$output/quality.svg"
say "results: $output/$name.json, table.md, time.svg, quality.svg"
