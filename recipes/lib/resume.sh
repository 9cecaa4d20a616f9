# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: assigns and uses what the sourcing script uses and assigns
# What a killed training goes on from, and whether the disk has room for it. Sourced; uses common.sh.
# fairseq-train itself goes on from the newest whole checkpoint and checks the space for the first ones (fairseq_modern).

stopped_status=75 # of fairseq-train after SIGTERM, with everything saved (torchrun has 1 then)

newest_valid_checkpoint() { # DIR: prints the newest checkpoint of fairseq that loads and is undamaged, or nothing
    [ ! -d "$1" ] || "$python" -m fairseq_modern.resuming "$1" || die "the checkpoints in $1 could not be read"
}

checkpoint_bytes() { # DIR PARAMETERS: prints the size of the largest checkpoint in DIR, else what one will at most have
    "$python" - "$1" "$2" <<'PYTHON'
import sys
from pathlib import Path

present = [file.stat().st_size for file in Path(sys.argv[1]).glob("checkpoint*.pt")]
# float32: the parameters and Adam's two moments; settings and names besides
print(max(present, default=12 * int(sys.argv[2]) + 1_000_000))
PYTHON
}

check_free_space() { # DIR BYTES: ends the script unless the disk of DIR, which need not exist yet, has so much room
    local folder=$1 free
    while [ ! -d "$folder" ]; do folder=$(dirname "$folder"); done
    free=$(df -Pk "$folder" | awk 'NR == 2 { printf "%.0f", $4 * 1024 }')
    [ "$free" -ge "$2" ] ||
        die "$1 needs $((($2 + 999999) / 1000000)) MB, its disk has $((free / 1000000)) MB free; make room or choose another --output"
}
