# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Shared by all recipes: the Python in use, the device, settings of a run, steps that are skipped once finished. Sourced,
# not run. A script sets `root` (of the repository) before; `recipe` is the name of its folder.

# shellcheck source=recipes/lib/options.sh
. "$root/recipes/lib/options.sh"
recipe=$(basename "$(dirname "$script")")
title=$recipe

# before bash 4.4 an empty array counts as unset
[ "${BASH_VERSINFO[0]}${BASH_VERSINFO[1]}" -ge 44 ] || die "bash 4.4 or newer is needed, this is $BASH_VERSION"

find_tools() { # sets scripts: where the console scripts of $python are
    command -v "$python" >/dev/null || die "no Python '$python'; name one with --python"
    # steps run in other folders
    case $python in /*) ;; */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
    scripts=$("$python" -c 'import sysconfig; print(sysconfig.get_path("scripts"))')
    for tool in fairseq-train fairseq-generate collab; do
        [ -x "$scripts/$tool" ] ||
            die "'$python' has no $tool ($scripts/$tool is missing); install the project first (README.md) or name another --python"
    done
}

find_device() { # sets device_flags for fairseq: one GPU where there is one, else the CPU
    if [ "${device:-auto}" = auto ]; then
        if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then device=gpu; else device=cpu; fi
    fi
    # without a world size fairseq would take every GPU it sees and so multiply the batch
    device_flags=(--distributed-world-size 1)
    case $device in
        gpu) export TORCH_CUDNN_SDPA_DEPRIORITIZED=1 ;; # cuDNN makes a plan for every new shape of a batch
        cpu)
            device_flags+=(--cpu)
            # glibc keeps what is freed: to get it from the kernel again takes longer than what is computed with it
            export MALLOC_TRIM_THRESHOLD_=${MALLOC_TRIM_THRESHOLD_:-$((1 << 33))}
            export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-$((1 << 32))}
            ;;
        *) die "--device must be auto, gpu or cpu, got '$device'" ;;
    esac
}

keep_settings() { # FILE; stdin: the settings of this run. A folder holds one run: other settings need another folder
    local wanted
    wanted=$(cat)
    if [ -f "$1" ]; then
        diff "$1" - <<<"$wanted" >&2 ||
            die "$output holds a run with other settings (< there, > asked for); choose another --output"
    else
        printf '%s\n' "$wanted" >"$1.tmp"
        mv "$1.tmp" "$1"
    fi
}

attend() { # PID of a child: waits for it, hands SIGINT and SIGTERM on to it; returns its status, 75 if it was handed one
    local status=0 asked=
    # shellcheck disable=SC2064  # this child
    trap "asked=yes; kill -TERM $1 2>/dev/null || true" INT TERM # a background command ignores SIGINT
    wait "$1" || status=$?
    while kill -0 "$1" 2>/dev/null; do status=0 && wait "$1" || status=$?; done
    trap - INT TERM
    if [ -n "$asked" ] && [ "$status" -ne 0 ]; then status=75; fi
    return "$status"
}

setting() { # NAME [FOLDER]: its value in the settings of the run there
    sed -n "s/^$1 //p" "${2:-$output}/settings.txt"
}

finished() { # STEP: true where an earlier run of this folder finished it
    [ -f "$output/.done/$1" ]
}

finish() { # STEP
    mkdir -p "$output/.done"
    : >"$output/.done/$1"
}

trained() { # CHECKPOINT: true where it has all updates
    "$python" - "$1" "$updates" <<'PYTHON'
import sys

from collab_fairseq import checkpoints

sys.exit(checkpoints.load(sys.argv[1])["optimizer_history"][-1]["num_updates"] < int(sys.argv[2]))
PYTHON
}
