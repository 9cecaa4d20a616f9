# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Training and averaging for all recipes. Sourced; uses common.sh and the settings of a recipe's config.sh.

# told apart from the run's settings: where curves go beside the log
logging_flags=()
at='' # .uN in a stage that ends after N updates, before the last

newest_valid_checkpoint() { # DIR: prints the checkpoint that a training goes on from, which is undamaged, or nothing
    [ ! -d "$1" ] || "$python" -m fairseq_modern.survival.resuming "$1" || die "the checkpoints in $1 could not be read"
}

train_command() { # sets command: what trains this run up to $updates
    local epochs=(--no-epoch-checkpoints)
    [ -z "$average_epochs" ] || epochs=(--keep-last-epochs "$average_epochs")
    # --log-file would repeat every line once per epoch and validation (fairseq adds a handler each time)
    # fairseq's own model, which comes without our --user-dir, is to survive a kill as well; the flags of --with, which are
    # among the model's, change the recipe's
    command=(env "OMP_NUM_THREADS=$((threads / gpus > 0 ? threads / gpus : 1))"
        "FAIRSEQ_MODERN_SURVIVAL=${FAIRSEQ_MODERN_SURVIVAL:-1}"
        ${launch[0]+"TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-100}"} "${launch[@]}"
        "$scripts/fairseq-train" "$data_bin" "${task_flags[@]}" "${optimisation_flags[@]}" "${model_flags[@]}"
        --max-update "$updates" --seed "$seed" --save-dir "$output/checkpoints" "${epochs[@]}"
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

train() { # in its stages, each averaged before the next one removes its checkpoints; or print the commands, with --dry-run
    local end last=$updates updates
    for end in "${stage_ends[@]}"; do
        updates=$end at=.u$end
        [ "$end" -ne "$last" ] || at=''
        train_stage
        [ -n "$dry_run" ] || [ -z "$at" ] || average
    done
}

is_trained() { # whether the run has reached $updates
    local newest
    newest=$(newest_valid_checkpoint "$output/checkpoints")
    [ -n "$newest" ] && trained "$newest"
}

train_stage() { # up to $updates, from the newest checkpoint where there is one
    local checkpoints=$output/checkpoints log=$output/train.log newest command status=0
    train_command
    if [ -n "$dry_run" ]; then printf '%q ' "${command[@]}" && echo && return; fi
    finished "train$at" && { say "training: done before${at:+, up to update $updates}"; return; }
    mkdir -p "$checkpoints"
    newest=$(newest_valid_checkpoint "$checkpoints")
    if [ -n "$newest" ]; then
        # fairseq-train would make one update more where an earlier run was ended after its last checkpoint
        if trained "$newest"; then
            say "training: ${newest##*/} is complete"
            : >>"$output/train.usage.jsonl" # a killed run has no line in it
            finish_stage
            return
        fi
        say "training: resuming from ${newest##*/}"
    else
        say "training"
    fi
    run_logged "$log" "$python" -m collab_fairseq.records.measure --append "$output/train.usage.jsonl" -- \
        "${command[@]}" || status=$?
    case $status in
        0) finish_stage ;;
        75) say "training: stopped as asked; the same command resumes it" && exit 75 ;; # EX_TEMPFAIL: try again
        *) die "training failed, see $log; the same command resumes it once the cause is removed" ;;
    esac
}

finish_stage() { # what its record is made of is kept as it is now
    local file
    [ -z "$at" ] || for file in train.log train.usage.jsonl; do cp "$output/$file" "$output/${file/train/train$at}"; done
    finish "train$at"
}

average() { # the last $average update checkpoints, and the last $average_epochs of epochs -> averaged*.pt
    local epochs
    average_as "${at:-$variant}" --num-update-checkpoints "$average"
    [ -n "$average_epochs" ] && [ -z "$variant" ] || return 0
    epochs=$(find "$output/checkpoints" -name 'checkpoint[0-9]*.pt' | wc -l)
    if [ "$epochs" -ge "$average_epochs" ]; then
        average_as "$at.epochs$average_epochs" --num-epoch-checkpoints "$average_epochs"
    else
        say "averaging: $epochs epochs so far, $average_epochs are needed for an average of theirs"
    fi
}

average_as() { # VARIANT FLAGS of collab average
    finished "average$1" && { say "averaging${1:+ ($1)}: done before"; return; }
    say "averaging the last $3 checkpoints${1:+ ($1)}"
    rm -f "$output/averaged$1.pt" # of an earlier attempt
    "$scripts/collab" average --inputs "$output/checkpoints" "${@:2}" --output "$output/averaged$1.pt" >&2 ||
        die "averaging failed"
    finish "average$1"
}

variants() { # prints what is to be translated: -, for averaged.pt, the last, and for its other averages what follows that name
    local end at
    if [ -z "$variant" ]; then
        for end in "${stage_ends[@]}"; do
            at=.u$end
            [ "$end" -ne "$updates" ] || at=''
            for at in ${at:+"$at"} "$at.epochs$average_epochs"; do
                [ ! -f "$output/averaged$at.pt" ] || echo "-$at"
            done
        done
    fi
    echo "-$variant"
}
