# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Training and averaging for all recipes. Sourced; uses common.sh and the settings of a recipe's config.sh.

trained() { # CHECKPOINT: true where it has all updates
    "$python" - "$1" "$updates" <<'PYTHON'
import sys

from collab_fairseq import checkpoints

sys.exit(checkpoints.load(sys.argv[1])["optimizer_history"][-1]["num_updates"] < int(sys.argv[2]))
PYTHON
}

train() { # trains up to $updates, from checkpoint_last.pt where there is one
    finished train && { say "training: done before"; return; }
    local checkpoints=$output/checkpoints log=$output/train.log
    mkdir -p "$checkpoints"
    if [ -f "$checkpoints/checkpoint_last.pt" ]; then
        # fairseq-train would make one update more where an earlier run was ended after its last checkpoint
        if trained "$checkpoints/checkpoint_last.pt"; then
            say "training: checkpoint_last.pt is complete"
            : >>"$output/train.usage.jsonl" # a killed run has no line in it
            finish train
            return
        fi
        say "training: resuming from checkpoint_last.pt"
    else
        say "training"
    fi
    # --log-file would repeat every line once per epoch and validation (fairseq adds a handler each time)
    OMP_NUM_THREADS=$threads "$python" -m collab_fairseq.reporting.measure --append "$output/train.usage.jsonl" -- \
        "$scripts/fairseq-train" "$data_bin" "${task_flags[@]}" "${model_flags[@]}" "${optimisation_flags[@]}" \
        --max-update "$updates" --seed "$seed" --save-dir "$checkpoints" --no-epoch-checkpoints \
        --save-interval-updates "$save_interval" --keep-interval-updates "$average" \
        --log-format json --log-interval "$log_interval" --num-workers 0 \
        "${device_flags[@]}" "${extra_flags[@]}" 2>&1 | tee -a "$log" ||
        die "training failed, see $log; the same command resumes it"
    finish train
}

average() { # the last $average update checkpoints -> averaged.pt
    finished average && { say "averaging: done before"; return; }
    say "averaging the last $average checkpoints"
    "$scripts/collab" average --inputs "$output/checkpoints" --num-update-checkpoints "$average" \
        --output "$output/averaged.pt" >&2 || die "averaging failed"
    finish average
}
