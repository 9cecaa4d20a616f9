# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Training and averaging for all recipes. Sourced; uses common.sh and the settings of a recipe's config.sh.

# told apart from the run's settings: where curves go beside the log
logging_flags=()

newest_valid_checkpoint() { # DIR: prints the checkpoint that a training goes on from, which is undamaged, or nothing
    [ ! -d "$1" ] || "$python" -m fairseq_modern.survival.resuming "$1" || die "the checkpoints in $1 could not be read"
}

train_command() { # sets command: what trains this run up to $updates
    # --log-file would repeat every line once per epoch and validation (fairseq adds a handler each time)
    # fairseq's own model, which comes without our --user-dir, is to survive a kill as well; the flags of --with, which are
    # among the model's, change the recipe's
    command=(env "OMP_NUM_THREADS=$((threads / gpus > 0 ? threads / gpus : 1))"
        "FAIRSEQ_MODERN_SURVIVAL=${FAIRSEQ_MODERN_SURVIVAL:-1}"
        ${launch[0]+"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-100}"} "${launch[@]}"
        "$scripts/fairseq-train" "$data_bin" "${task_flags[@]}" "${optimisation_flags[@]}" "${model_flags[@]}"
        --max-update "$updates" --seed "$seed" --save-dir "$output/checkpoints" --no-epoch-checkpoints
        --save-interval-updates "$save_interval" --keep-interval-updates "${keep:-$average}"
        --log-format json --log-interval "$log_interval" --num-workers "${loaders:-0}"
        "${device_flags[@]}" "${parallel_flags[@]}" "${logging_flags[@]}" "${rest[@]}")
}

run_logged() { # LOG COMMAND...: a signal to this script reaches the command, whose last words are still logged
    local log=$1 status=0 stream tee
    shift
    exec {stream}> >(trap '' INT TERM; exec tee -a "$log")
    tee=$!
    "$@" >&"$stream" 2>&1 {stream}>&- &
    exec {stream}>&-
    attend "$!" || status=$?
    wait "$tee" || true
    return "$status"
}

train() { # from the newest checkpoint where there is one; or print the command that does, with --dry-run
    local checkpoints=$output/checkpoints log=$output/train.log newest command status=0
    train_command
    if [ -n "$dry_run" ]; then printf '%q ' "${command[@]}" && echo && return; fi
    finished train && { say "training: done before"; return; }
    mkdir -p "$checkpoints"
    newest=$(newest_valid_checkpoint "$checkpoints")
    if [ -n "$newest" ]; then
        # fairseq-train would make one update more where an earlier run was ended after its last checkpoint
        if trained "$newest"; then
            say "training: ${newest##*/} is complete"
            : >>"$output/train.usage.jsonl" # a killed run has no line in it
            finish train
            return
        fi
        say "training: resuming from ${newest##*/}"
    else
        say "training"
    fi
    run_logged "$log" "$python" -m collab_fairseq.records.measure --append "$output/train.usage.jsonl" -- \
        "${command[@]}" || status=$?
    case $status in
        0) finish train ;;
        75) say "training: stopped as asked; the same command resumes it" && exit 75 ;; # EX_TEMPFAIL: try again
        *) die "training failed, see $log; the same command resumes it once the cause is removed" ;;
    esac
}

average() { # the last $average update checkpoints -> averaged.pt
    finished "average${variant:-}" && { say "averaging: done before"; return; }
    say "averaging the last $average checkpoints"
    "$scripts/collab" average --inputs "$output/checkpoints" --num-update-checkpoints "$average" \
        --output "$output/averaged${variant:-}.pt" >&2 || die "averaging failed"
    finish "average${variant:-}"
}
