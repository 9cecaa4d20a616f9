# shellcheck shell=bash disable=SC2034
# Which initial mixing matrix, and how fast does it learn? Short trainings, one factor at a time, beside standard heads.
# Settings for `recipes/multi30k/sweep.sh --config recipes/multi30k/mixing.sh`.

updates=800
warmup=400
fast=yes
cpu_precision=bf16

runs=(none:128 none:32 encoder_cross_decoder:32)
for name in blocks noisy_blocks scaled_blocks bands signs unit normal blocks_content blocks3 blocks8 blocks24 xavier8; do
    runs+=("encoder_cross_decoder:32:$name")
done
