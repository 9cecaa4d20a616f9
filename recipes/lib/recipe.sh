# shellcheck shell=bash disable=SC2154,SC2034  # a sourced file: the sourcing script and config.sh assign what it uses
# What the scripts of every recipe share: options, the run that they name, the steps. A script is named for its step (train,
# average, evaluate; run: all of them; sweep: several runs), its folder for the recipe; it sources this file, no more.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/lib/batch.sh
. "$root/recipes/lib/batch.sh"
# shellcheck source=recipes/lib/train.sh
. "$root/recipes/lib/train.sh"
# shellcheck source=recipes/lib/evaluate.sh
. "$root/recipes/lib/evaluate.sh"
# shellcheck source=recipes/lib/sweep.sh
. "$root/recipes/lib/sweep.sh"

step=$(basename "$script" .sh)

# what a config.sh may leave out
source_lang=en target_lang=de
data=$root/data/$recipe prepare=$root/data_prep/$recipe.sh source_option=--source
heads=encoder_cross_decoder seed=1 average=5
stock_flags=()
declare -A sacrebleu_sets=()
valid_tests=()
blind=()
runs=()
with='' # name of more flags of fairseq-train
fast=''
fast_flags=(--criterion label_smoothed_cross_entropy_chunked --optimizer fused_adam --fast-dropout)
# what served collaborative heads better than the start and the one learning rate of the paper (recipes/multi30k)
declare -A with_flags=([blocks8]="--mixing-init blocks --mixing-lr-multiplier 8")
gpus=
nodes=1
loaders=0
keep=
stages=1
average_epochs='' # so many epochs' checkpoints are kept and averaged, too
longest=1024 # fairseq leaves out longer sentences (--max-source-positions)
own_config=${RECIPE_CONFIG:-}
for ((argument = 1; argument < $#; argument++)); do
    if [ "${!argument}" = -- ]; then break; fi
    [ "${!argument}" != --wide ] ||
        die "--wide is gone: train with --heads none, convert the result with collab reparam, train on with --finetune-from-model"
    if [ "${!argument}" = --config ]; then next=$((argument + 1)) && own_config=${!next}; fi
done
# shellcheck source=recipes/multi30k/config.sh
. "$root/recipes/$recipe/config.sh"
if [ -n "$own_config" ]; then
    [ -f "$own_config" ] || die "--config: there is no file $own_config"
    own_config=$(absolute "$own_config")
    # shellcheck disable=SC1090
    . "$own_config"
fi

task_flags=(--task translation --source-lang "$source_lang" --target-lang "$target_lang")

usage() {
    case $step in
        train) echo "Train one model: $about. The data are prepared where they are missing." ;;
        average) echo "Average the last checkpoints of a run that train.sh has made." ;;
        evaluate) echo "Translate, score (tokenised, compound-split and sacreBLEU) and record a run that average.sh has been at." ;;
        run) echo "$about: prepare, train, average, translate, score, record." ;;
        sweep) echo "$about: several runs, one after the other, and the table of their results." ;;
    esac
    echo
    if [ "$step" = sweep ]; then sweep_usage; else run_usage; fi
    cat <<END
model and training (the same options name the same run in all scripts)
  --arch NAME       a preset of this project (default: $arch)
  --updates N       length of the training (default: $updates)
  --warmup N        warm-up updates of the learning rate (default: $warmup)
  --fast            the loss in chunks, Adam in one pass, dropout from fewer random bits (default: ${fast:-no})
data
  --data DIR        made by ${prepare#"$root/"}, which is run where DIR does not exist (default: ${data#"$root/"})
  $(printf '%-16s' "$source_option PATH")  the corpus as downloaded, for that script
  --reference FILE  raw references of the test set (default: those of the data${sacrebleu_sets[*]:+, else fetched by sacrebleu})
machine
  --device NAME     auto, gpu or cpu (default: ${device:-auto})
  --gpus N          GPUs per node, or processes on a CPU (default: ${gpus:-all GPUs})
  --nodes N         nodes (default: $nodes, in a Slurm job those of the job); outside Slurm start this script on each with
  --master H:P        a port P of the first node H, and
  --node-rank R       its number from 0
  --max-tokens N    tokens per GPU and pass (default: the largest up to $largest_tokens, more from 48 GiB on, that gives
                    the batch)
  --batch-tokens N  tokens per update, of all GPUs together (default: $batch_tokens)
  --precision NAME  auto, fp16, bf16 or fp32 (default: $precision; auto: ${gpu_precision:-bf16 where the GPUs have it, else fp16};
                    a CPU ${cpu_precision:-is measured}$([ "${cpu_precision:-}" != bf16 ] || echo ' where it has units for it, else fp32'))
  --threads N       CPU threads per node (default: OMP_NUM_THREADS, else the cores that this shell may use)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)
results
  --average N       average the last N checkpoints${average_epochs:+, beside the last $average_epochs epochs} (default: $average; there are $saves in a run,
                    ${keep:-$average} are kept)
  --stages N        average, translate, score and record after each of N equal parts of the run (default: $stages)
  --valid           evaluate on the validation set instead of the test set${valid_tests[*]:+ (${valid_tests[*]#*:})}
  --tensorboard DIR curves for TensorBoard
  --wandb PROJECT   curves for Weights & Biases
  --config FILE     settings in place of those in recipes/$recipe/config.sh (default: \$RECIPE_CONFIG)
  --dry-run         print the training command and do nothing

The same command continues what was interrupted; finished steps and runs are skipped.
A run holds settings.txt, train.log, checkpoints/, averaged.pt, <test set>.generate.log and .scores.json, hypotheses/,
record.json${blind[*]:+ and model/ for collab translate; the translations of ${blind[*]} are made with it}.
END
}

run_usage() {
    cat <<END
usage: recipes/$recipe/$step.sh [options] [-- FLAGS of fairseq-train ...]

  --heads SITES     collaborative heads: encoder, cross, decoder joined by _, or none (default: $heads)
  --key-dim N       shared key dimension (default: ${key_dim:-${default_key_dim:-the embedding width}})
  --seed N          (default: $seed)
  --output DIR      where the run is (default: runs/$recipe/<what it is>)
END
    [ ${#with_flags[@]} -eq 0 ] || cat <<END
  --with NAME       more flags of fairseq-train, by a name of config.sh: $(printf '%s\n' "${!with_flags[@]}" | sort | paste -sd' ')
END
    [ ${#stock_flags[@]} -eq 0 ] || cat <<END
  --stock           fairseq's own transformer of the same size instead (no --heads, --key-dim, --arch, --fast)
END
}

command_line="$script $*"
python=${PYTHON:-python}
precision=${precision:-auto}
nodes=${SLURM_JOB_NUM_NODES:-$nodes}
node_rank=0
reference=${reference:-}
max_tokens='' threads='' output='' stock='' valid='' dry_run='' master='' tensorboard='' wandb=''
printf -v "${source_option#--}" ''

# flags of fairseq-train that follow from options of the recipe, which would say and record something else
declare -A own_options=([max-tokens]="--max-tokens or --batch-tokens" [batch-size]=--max-tokens [update-freq]=--batch-tokens
    [max-update]=--updates [warmup-updates]=--warmup [seed]=--seed [save-dir]=--output [arch]=--arch [cpu]=--device
    [fp16]=--precision [bf16]=--precision [collaborative-heads]=--heads [key-dim]=--key-dim [distributed-world-size]=--gpus
    [keep-interval-updates]=--average [tensorboard-logdir]=--tensorboard [wandb-project]=--wandb)

check_options() { # refuses what would otherwise come to light in the training, or never
    local word name
    for word in "${rest[@]}"; do
        name=${word%%=*} name=${name#--}
        [[ $word != --* ]] || [ -z "${own_options[${name:-none}]:-}" ] ||
            die "--$name after -- is what this recipe decides; give ${own_options[$name]} before the --"
    done
    [ "$heads" = none ] || [[ $heads =~ ^(encoder|cross|decoder)(_(encoder|cross|decoder))*$ ]] ||
        die "--heads must be encoder, cross and decoder joined by _, or none, got '$heads'"
    [ "$batch_tokens" -ge "$longest" ] || longest=$batch_tokens # a trial, with short sentences
}

name_run() { # sets run_name, model_flags, output and all that follows from the options
    data=$(absolute "$data")
    data_bin=$data/data-bin
    save_interval=$((updates / saves > 0 ? updates / saves : 1))
    # shellcheck disable=SC2206  # flags with their values
    if [ -n "$with" ]; then
        [ -n "${with_flags[$with]:-}" ] || die "--with must be one of $(printf '%s\n' "${!with_flags[@]}" | sort | paste -sd' '), got '$with'"
        shared_model_flags+=(${with_flags[$with]})
    fi
    if [ -n "$stock" ]; then
        ! is_given heads && ! is_given key_dim && ! is_given arch && ! is_given fast ||
            die "--stock excludes --heads, --key-dim, --arch and --fast"
        run_name=$recipe-stock-s$seed-u$updates
        user_dir_flags=()
        model_flags=("${stock_flags[@]}")
    else
        [ -n "$key_dim" ] || [ "$heads" = none ] || key_dim=$default_key_dim
        run_name=$recipe-$heads${key_dim:+-dk$key_dim}${with:+-$with}-s$seed-u$updates
        user_dir_flags=(--user-dir "$("$scripts/collab" user-dir)")
        model_flags=("${user_dir_flags[@]}" --arch "$arch" --collaborative-heads "$heads" ${key_dim:+--key-dim "$key_dim"})
        [ -z "$fast" ] || optimisation_flags+=("${fast_flags[@]}")
    fi
    model_flags+=("${shared_model_flags[@]}")
    optimisation_flags+=(--warmup-updates "$warmup")
    [ -z "$tensorboard" ] || logging_flags+=(--tensorboard-logdir "$(absolute "$tensorboard")")
    [ -z "$wandb" ] || logging_flags+=(--wandb-project "$wandb")
    output=$(absolute "${output:-$root/runs/$recipe/${run_name#"$recipe-"}}")
    plan_stages
    variant='' result=''
    if [ -n "$valid" ]; then
        [ ${#valid_tests[@]} -gt 0 ] || die "--valid: this recipe has no references for its validation set"
        tests=("${valid_tests[@]}")
        result=.valid # has a record of its own
    fi
}

plan_stages() { # sets stage_ends, the updates after which the run is averaged, the last its end
    local stage
    stage_ends=()
    for ((stage = 1; stage < stages; stage++)); do
        stage_ends+=($((updates * stage / stages / save_interval * save_interval)))
    done
    stage_ends+=("$updates")
    case $step in train | run) ;; *) return 0 ;; esac
    [ "$stages" -eq 1 ] || [[ " ${optimisation_flags[*]} " != *" --lr-scheduler cosine "* ]] ||
        die "--stages $stages: with a learning rate that falls to zero at the end only that can be averaged"
    [ $((stage_ends[0] / save_interval)) -ge "$average" ] ||
        die "--average $average: there are fewer checkpoints, $((stage_ends[0] / save_interval)), by update ${stage_ends[0]}," \
            "one every $save_interval; lower --average$([ "$stages" -eq 1 ] || echo " or --stages"), or raise --updates"
    [ "${keep:-$average}" -ge "$average" ] || die "--average $average: only $keep checkpoints are kept"
}

prepare_data() {
    [ ! -d "$data_bin" ] || [ ! -f "$data/prepared.txt" ] || return 0
    local corpus=${source_option#--}
    "$prepare" --output "$data" --python "$python" ${!corpus:+"$source_option" "${!corpus}"} ||
        die "the data could not be prepared"
}

keep_run() { # the settings that make it this run; the machine it runs on is not among them
    mkdir -p "$output"
    keep_settings "$output/settings.txt" <<EOF
name $run_name
seed $seed
data $(cut -c1-64 "$data/SHA256SUMS" | sort -u | cksum | cut -d' ' -f1)
average $average
checkpoints every $save_interval updates, $keep kept${average_epochs:+, $average_epochs epochs}
model ${model_flags[*]#"$root/"}
training ${optimisation_flags[*]}, $batch_tokens tokens per update
extra ${rest[*]}
generation ${generation_flags[*]}
EOF
}

join_run() { # takes the name and the seed of a run that is there; another average than its own has files of its own
    [ -f "$output/settings.txt" ] || die "there is no run in $output (train.sh makes it; the same options name the same run)"
    run_name=$(setting name)
    seed=$(setting seed)
    is_given average || average=$(setting average)
    [ "$average" = "$(setting average)" ] || variant=.last$average
}

main() {
    read_options "$@"
    find_tools
    check_options
    if [ "$step" = sweep ]; then
        sweep
        return
    fi
    find_cards
    find_device
    [ -n "$threads" ] || threads=$(usable_cores)
    keep=${keep:-$average}
    name_run
    case $step in
        train | run)
            choose_precision
            split_batch
            plan_processes
            [ -z "$dry_run" ] || { train && return; }
            if [ "$node_rank" -gt 0 ]; then # the first node does everything else
                mkdir -p "$output"
                for updates in "${stage_ends[@]}"; do
                    ! is_trained || continue
                    train_command
                    run_logged "$output/train.node$node_rank.log" "${command[@]}" || die "training failed on this node"
                done
                return
            fi
            prepare_data
            keep_run
            train
            ;;
        *) join_run ;;
    esac
    case $step in average | run) average ;; esac
    case $step in
        evaluate | run)
            [ -f "$output/averaged$variant.pt" ] || die "there is no averaged$variant.pt in $output; average.sh makes it"
            for variant in $(variants); do
                variant=${variant#-}
                translate
                score
                record
                publish
            done
            ;;
    esac
}

main "$@"
