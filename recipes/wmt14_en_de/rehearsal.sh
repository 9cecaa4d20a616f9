# shellcheck shell=bash disable=SC2034,SC2154
# Settings for a rehearsal on a laptop: --config recipes/wmt14_en_de/rehearsal.sh, or RECIPE_CONFIG, in place of the
# same names in config.sh. A small model, two CPU processes, the miniature archive of data_prep/miniature.py.

about="$about; rehearsal with a small model on made-up text"
data=$root/data/wmt16_en_de.rehearsal/data
reference=$root/data/wmt16_en_de.rehearsal/miniature/references.de
runs=(none:64 none:16 encoder_cross_decoder:16)
arch=transformer_collab_tiny
key_dim=64
updates=300
warmup=60
saves=12
average=3
keep=5
average_epochs=2
log_interval=10
loaders=0

device=cpu
gpus=2
batch_tokens=2048
largest_tokens=1024

shared_model_flags+=(--encoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 4
    --decoder-layers 2 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 --decoder-attention-heads 4)
optimisation_flags+=(--lr 0.005)
