# shellcheck shell=bash disable=SC2154,SC2034  # a sourced file: the sourcing script assigns and uses what is here
# What runs where: cards, precision, how the effective batch is divided, how processes are started. Sourced; uses
# common.sh and the settings `device`, `gpus`, `nodes`, `precision`, `batch_tokens`, `max_tokens`, `largest_tokens`,
# `longest`, `dry_run`, `arch`, `threads` and perhaps `cpu_precision`.

cards() { # prints how many GPUs there are, the lowest compute capability and GiB of memory: "4 70 15"; "0 0 0" without
    "$python" - <<'PYTHON'
import torch

found = [torch.cuda.get_device_properties(n) for n in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
lowest = [min(x, default=0) for x in ([10 * c.major + c.minor for c in found], [c.total_memory >> 30 for c in found])]
print(len(found), *lowest)
PYTHON
}

find_cards() { # sets device, gpus (processes per node), capability and memory
    local number
    read -r number capability memory <<<"$(cards)"
    [ "${device:-auto}" != auto ] || { if [ "$number" -gt 0 ]; then device=gpu; else device=cpu; fi; }
    case $device in
        cpu) [ -n "$gpus" ] || gpus=1 ;;
        gpu)
            # the command for another machine can be printed on one without GPUs
            [ -z "$dry_run" ] || [ "$number" -gt 0 ] || [ -z "$gpus" ] || { number=$gpus capability=unknown; }
            [ "$number" -gt 0 ] || die "--device gpu: torch sees no GPU here (see collab doctor)"
            [ -n "$gpus" ] || gpus=$number
            [ "$gpus" -le "$number" ] || die "--gpus $gpus: this machine has $number"
            ;;
    esac # any other is refused by find_device
}

products() { # prints how fast this CPU multiplies matrices of the model's sizes: GFLOP/s in fp32, in bf16
    OMP_NUM_THREADS=$((threads / gpus > 0 ? threads / gpus : 1)) "$python" "$root/recipes/lib/products.py" "$arch"
}

has_bfloat16_units() { # whether this CPU computes faster in bfloat16
    local units
    units=$("$python" -c 'from fairseq_modern import processor; print(*processor.bfloat16_units())') ||
        die "this CPU could not be asked for its units"
    [ -n "$units" ]
}

choose_precision() { # sets precision to fp16, bf16 or fp32
    local measured single half
    [ "$capability$precision" != unknownauto ] || precision=${gpu_precision:-auto}
    [ "$capability" != unknown ] || case $precision in
        fp16 | bf16 | fp32) return 0 ;;
        *) die "--precision must be fp16, bf16 or fp32 where there is no GPU to ask, got '$precision'" ;;
    esac
    case $precision in
        auto)
            # bfloat16 has the range of float32 and needs no loss scale, but only capability 8.0 (A100) and later have it
            if [ "$device" = gpu ]; then
                if [ -n "${gpu_precision:-}" ]; then precision=$gpu_precision
                elif [ "$capability" -ge 80 ]; then precision=bf16; else precision=fp16; fi
                return 0
            fi
            if [ -n "${cpu_precision:-}" ]; then
                precision=$cpu_precision
                if [ "$precision" = bf16 ] && ! has_bfloat16_units; then
                    precision=fp32
                    say "this CPU has no units for bfloat16: trains in fp32"
                fi
                return
            fi
            measured=$(products) || die "this CPU could not be measured"
            read -r single half <<<"$measured"
            if [ $((10 * half)) -ge $((13 * single)) ]; then precision=bf16; else precision=fp32; fi
            say "this CPU multiplies the model's matrices at $single GFLOP/s in fp32, $half in bf16: trains in $precision"
            ;;
        fp32) ;;
        fp16 | bf16)
            [ "$device" = gpu ] || [ "$precision" = bf16 ] || die "--precision fp16 needs a GPU; a CPU trains in fp32 or bf16"
            [ "$device" = gpu ] || has_bfloat16_units ||
                die "--precision bf16: this CPU has no units for bfloat16; leave out the option or give --precision fp32"
            [ "$device" = cpu ] || [ "$precision" = fp16 ] || [ "$capability" -ge 80 ] ||
                die "--precision bf16 needs a GPU of compute capability 8.0, this one has" \
                    "$((capability / 10)).$((capability % 10)); use fp16"
            ;;
        *) die "--precision must be auto, fp16, bf16 or fp32, got '$precision'" ;;
    esac
}

shares() { # PROCESSES MOST: the max-tokens up to MOST that give the batch in whole updates, the largest first
    local times share
    for ((times = 1; batch_tokens / ($1 * times) >= longest; times++)); do
        share=$((batch_tokens / ($1 * times)))
        [ $(($1 * times * share)) -ne "$batch_tokens" ] || [ "$share" -gt "$2" ] || echo "$share"
    done
}

split_batch() { # sets max_tokens and update_freq, so that processes × max_tokens × update_freq = $batch_tokens
    local processes=$((gpus * nodes)) number possible='' most=$largest_tokens
    if [ -z "$max_tokens" ]; then
        # $largest_tokens are for cards of 16 GiB; larger ones would only wait for the launches of so small passes
        if [ "$device" = gpu ] && [ "${memory:-0}" -ge 48 ]; then most=$((largest_tokens * (memory / 24))); fi
        max_tokens=$(shares "$processes" "$most" | sed -n 1p)
        if [ -z "$max_tokens" ]; then
            for number in {1..64}; do [ -z "$(shares "$number" "$most")" ] || possible+=", $number"; done
            die "$batch_tokens tokens per update cannot be divided evenly among $processes processes with at least" \
                "$longest each (the longest sentence); possible numbers: ${possible#, }"
        fi
    else
        for number in $(shares "$processes" "$batch_tokens"); do possible+=", $number"; done
        [[ "$possible," = *", $max_tokens,"* ]] ||
            die "--max-tokens $max_tokens on $processes processes does not give $batch_tokens tokens per update;" \
                "$([ -n "$possible" ] && echo "possible with --max-tokens ${possible#, }" || echo "no number does on so many")"
    fi
    update_freq=$((batch_tokens / (processes * max_tokens)))
    say "$processes $([ "$device" = gpu ] && echo GPU || echo 'CPU process')(s) x $max_tokens tokens x update-freq" \
        "$update_freq = $batch_tokens tokens per update, $precision"
}

rendezvous_port() { # one that the job's id tells, so that all nodes know it and jobs on a shared node differ; else a free one
    if [ -n "${MASTER_PORT:-}" ]; then
        echo "$MASTER_PORT"
    elif [ -n "${SLURM_JOB_ID:-}" ]; then
        echo $((20000 + SLURM_JOB_ID % 10000)) # below the ports that systems give out
    else
        "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
    fi
}

plan_processes() { # sets parallel_flags for fairseq-train and launch, the command that starts it in several processes
    local processes=$((gpus * nodes)) address=127.0.0.1 port
    parallel_flags=(--max-tokens "$max_tokens" --update-freq "$update_freq")
    case $device-$precision in
        *-fp32) ;;
        cpu-bf16) parallel_flags+=(--amp) ;; # which refuses a CPU without units for it; parameters stay in fp32
        *) parallel_flags+=("--$precision") ;;
    esac
    launch=()
    [ "$processes" -gt 1 ] || return 0
    parallel_flags+=(--distributed-world-size "$processes")
    [ "$device" = gpu ] || parallel_flags+=(--distributed-backend gloo)
    if [ "$nodes" -eq 1 ]; then
        port=$(rendezvous_port)
    elif [ -n "${SLURM_JOB_ID:-}" ]; then
        address=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p) # not head: it would cut scontrol short
        port=$(rendezvous_port)
    else
        case $master in *?:*[0-9]) address=${master%:*} port=${master##*:} ;; *)
            die "--nodes $nodes outside Slurm needs --master HOST:PORT and, on each node, --node-rank R" ;;
        esac
    fi
    launch=("$python" -m torch.distributed.run --nproc_per_node "$gpus" --nnodes "$nodes"
        --master_addr "$address" --master_port "$port")
    if [ "$nodes" -gt 1 ] && [ -n "${SLURM_JOB_ID:-}" ]; then
        # one torchrun per node; only there is its rank known
        # shellcheck disable=SC2016
        # srun does not take over the job's --cpus-per-task since Slurm 22.05: one core for all processes of a node
        launch=(srun --nodes "$nodes" --ntasks "$nodes" --ntasks-per-node 1 --kill-on-bad-exit=1
            --cpus-per-task "${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-$threads}}"
            bash -c 'exec "${@:1:3}" --node_rank "$SLURM_NODEID" "${@:4}"' torchrun "${launch[@]}")
    else
        launch+=(--node_rank "$node_rank")
    fi
}
