# shellcheck shell=bash disable=SC2034
# Which learning rate serves which row? Short trainings with a seed that no result has, without translations; and at key dim 32 as many
# trials more for either kind of heads. Settings for `recipes/curve/sweep.sh --config recipes/curve/rates.sh`.

updates=600
warmup=150
seed=11
tests=() blind=()

runs=()
for thousandths in 1 2 4; do
    for key_dims in 256 64 32 16; do runs+=("none:$key_dims:lr$thousandths"); done
    for key_dims in 64 32; do runs+=("encoder_cross_decoder:$key_dims:blocks8_lr$thousandths"); done
    runs+=("encoder_cross_decoder:32:blocks_lr$thousandths" "none:32:scaled_lr$thousandths")
done
