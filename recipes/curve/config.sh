# shellcheck shell=bash disable=SC2034,SC2154
# The curve: key dims against loss. Multi30K English-German, 2+2 layers of width 256 with 8 heads, the structure of the paper's model
# (heads of 32 dimensions, its quarter is twice a head). Settings only; recipes/lib does the work, rates.sh has the choice of the rates.

# shellcheck source=recipes/multi30k/config.sh
. "$root/recipes/multi30k/config.sh"

about="Multi30K English-German, key dims against loss"
data=$root/data/multi30k prepare=$root/data_prep/multi30k.sh

arch=transformer_collab
shared_model_flags=(--share-all-embeddings --dropout 0.3
    --encoder-layers 2 --encoder-embed-dim 256 --encoder-ffn-embed-dim 512 --encoder-attention-heads 8
    --decoder-layers 2 --decoder-embed-dim 256 --decoder-ffn-embed-dim 512 --decoder-attention-heads 8)
stock_flags=()
default_key_dim=64
updates=2000
warmup=500
fast=yes
precision=fp32 # on any machine
optimisation_flags+=(--lr-scheduler cosine)
runs=(none:256:lr2 none:64:lr2 encoder_cross_decoder:64:blocks8_lr2 none:32:lr2 none:16:lr2 encoder_cross_decoder:32:blocks8_lr2)

# flags by name: learning rates in thousandths; `blocks8` and `blocks` are collaborative heads whose mixing matrix learns
# eight times as fast as the rest or as fast; `scaled` are standard heads that divide by the root of their own key dims
# (4 of 32), in a file without weights that score_scale.py makes
declare -A with_flags=()
for thousandths in 1 2 4; do
    rate="--lr 0.00$thousandths"
    with_flags[lr$thousandths]=$rate
    with_flags[blocks8_lr$thousandths]="--mixing-init blocks --mixing-lr-multiplier 8 $rate"
    with_flags[blocks_lr$thousandths]="--mixing-init blocks $rate"
    with_flags[scaled_lr$thousandths]="--attention-from $root/runs/curve/scaled-32.pt $rate"
done
