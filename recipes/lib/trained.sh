# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: the sourcing script assigns and uses what is shared
# Shared by the recipes that begin with a trained model and its data. Sourced after common.sh, not run.

open_trained() { # checks --model, --data and --name, makes them and $output absolute, and sets model_sum
    [ -n "$model" ] && [ -n "$data" ] && [ -n "$name" ] || die "--model, --data and --name are needed (see --help)"
    case $name in *[!A-Za-z0-9_-]*) die "--name must be made of letters, digits, _ and -, got '$name'" ;; esac
    [ -f "$model" ] || die "there is no checkpoint $model"
    [ -d "$data" ] || die "there is no data-bin $data"
    find_tools
    model=$(absolute "$model") data=$(absolute "$data") output=$(absolute "${output:-$root/runs/$recipe/$name}")
    model_sum=$("$python" -c 'import sys; from collab_fairseq.checkpoints import sha256; print(sha256(sys.argv[1]))' "$model")
    mkdir -p "$output"
}

model_flags=()
train_on() { # CHECKPOINT FOLDER UPDATES FLAGS: fairseq-train from a model of the sizes of $model; a second call goes on
    local status=0 checkpoint=$1 folder=$2 updates=$3
    shift 3
    # fairseq-train would make one update more
    if [ -f "$folder/checkpoint_last.pt" ] && trained "$folder/checkpoint_last.pt"; then return; fi
    [ ${#model_flags[@]} -gt 0 ] || mapfile -t model_flags < <("$python" "$root/recipes/lib/model_flags.py" "$model")
    [ ${#model_flags[@]} -gt 0 ] || die "the sizes of $model could not be read"
    "$scripts/fairseq-train" "$data" --task translation --user-dir "$("$scripts/collab" user-dir)" "${model_flags[@]}" \
        --attention-from "$checkpoint" --finetune-from-model "$checkpoint" --num-workers 0 --seed "$seed" \
        --max-update "$updates" --save-dir "$folder" --no-epoch-checkpoints --keep-interval-updates 1 --log-format json \
        "$@" >>"$folder.log" 2>&1 &
    attend $! || status=$?
    [ "$status" -eq 0 ] || die "the training failed or was stopped, see $folder.log; run again to continue"
}
