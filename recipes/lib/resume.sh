# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# What a killed training goes on from. Sourced; uses common.sh. fairseq-train itself does the same and, before its first
# update, sees whether the disk has room for what it will keep (fairseq_modern/resuming.py).

newest_valid_checkpoint() { # DIR: prints the newest checkpoint of fairseq that loads and is undamaged, or nothing
    [ ! -d "$1" ] || "$python" -m fairseq_modern.resuming "$1" || die "the checkpoints in $1 could not be read"
}
