# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: the sourcing script uses what is here
# The settings of a recipe from its config for fairseq-hydra-train, so that they stand once. Sourced by a config.sh.

declare -A hydra=() # SECTION.KEY -> value
hydra_keys=()       # in the order of the file

read_hydra() { # FILE: sections of plain values, as fairseq's own are; sets what a config.sh sets of the model and its training
    local key value
    while IFS=$'\t' read -r key value; do
        hydra[$key]=$value
        hydra_keys+=("$key")
    done < <(awk '
        /^[a-z_]+:/ { section = substr($1, 1, length($1) - 1) }
        /^  [a-z0-9_]+: / {
            key = substr($1, 1, length($1) - 1)
            sub(/^ *[a-z0-9_]+: */, ""); sub(/ +#.*/, ""); gsub(/[][]/, "")
            print section "." key "\t" $0
        }' "$1")
    source_lang=${hydra[task.source_lang]} target_lang=${hydra[task.target_lang]}
    arch=${hydra[model._name]} heads=${hydra[model.collaborative_heads]} key_dim=${hydra[model.key_dim]}
    updates=${hydra[optimization.max_update]} warmup=${hydra[lr_scheduler.warmup_updates]} seed=${hydra[common.seed]}
    saves=$((updates / ${hydra[checkpoint.save_interval_updates]})) keep=${hydra[checkpoint.keep_interval_updates]}
    average_epochs=${hydra[checkpoint.keep_last_epochs]:-}
    [ "${hydra[common.fp16]:-}" != true ] || gpu_precision=fp16
    log_interval=${hydra[common.log_interval]} loaders=${hydra[dataset.num_workers]}
    largest_tokens=${hydra[dataset.max_tokens]}
    batch_tokens=$((largest_tokens * hydra[optimization.update_freq] * hydra[distributed_training.distributed_world_size]))
    mapfile -t shared_model_flags < <(hydra_flags model _name collaborative_heads key_dim)
    mapfile -t optimisation_flags < <(
        for section in optimizer lr_scheduler optimization criterion; do
            hydra_flags "$section" max_update warmup_updates update_freq
        done
    )
}

hydra_flags() { # SECTION KEY...: prints fairseq-train's flags for its settings but those keys, a word a line
    local name key flag
    for name in "${hydra_keys[@]}"; do
        key=${name#*.}
        [ "${name%%.*}" = "$1" ] && [[ " ${*:2} " != *" $key "* ]] || continue
        flag=--${key//_/-}
        [ "$key" != _name ] || flag=--${1//_/-}
        case ${hydra[$name]} in
            true) echo "$flag" ;;
            false) ;;
            *) printf '%s\n' "$flag" "${hydra[$name]}" ;;
        esac
    done
}
