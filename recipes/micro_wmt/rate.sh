# shellcheck shell=bash disable=SC2034
# Is it the learning rate? Short trainings at that of the main table and at a smaller one, with standard and collaborative heads.
# Settings for `recipes/micro_wmt/sweep.sh --config recipes/micro_wmt/rate.sh`.

updates=1200
warmup=400

with_flags[lr002]="--lr 0.002"
with_flags[blocks8_lr002]="${with_flags[blocks8]} --lr 0.002"
runs=(none:128 none:128:lr002 encoder_cross_decoder:32:blocks8 encoder_cross_decoder:32:blocks8_lr002)
