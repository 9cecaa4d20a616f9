# shellcheck shell=bash disable=SC2034
# The main table: longer trainings whose learning rate falls to zero, so that the validation loss has settled at the end.
# Settings for `recipes/multi30k/run.sh --config recipes/multi30k/table.sh` and `sweep.sh`.

updates=4000
fast=yes
cpu_precision=bf16
optimisation_flags+=(--lr-scheduler cosine)

# The rows of the table, after them pairs whose caches are equal
runs=(none:128 none:32 encoder_cross_decoder:32:blocks8 encoder_cross_decoder:32:blocks
    encoder_cross_decoder:64:blocks8_values2 none:128:keys2
    encoder_cross_decoder:32:blocks8_values1 none:128:keys1 none:128:latent64)
