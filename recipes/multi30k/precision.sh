# shellcheck shell=bash disable=SC2034
# Does bfloat16 (autocast, `--amp`) learn as float32 does? The same training in both.
# Settings for `recipes/multi30k/sweep.sh --config recipes/multi30k/precision.sh`.

updates=1500
fast=yes
cpu_precision=fp32
with_flags[blocks_amp]="${with_flags[blocks]} --amp"
runs=(encoder_cross_decoder:32:blocks encoder_cross_decoder:32:blocks_amp)
