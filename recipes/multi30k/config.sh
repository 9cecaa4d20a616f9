# shellcheck shell=bash disable=SC2034,SC2154
# Multi30K English-German with a tiny transformer: 4+4 layers, width 128, 4 heads. Settings only; recipes/lib does the work.

about="Multi30K English-German with a tiny transformer"
tests=(test:test_2016_flickr test1:test_2017_flickr)
blind=(blind_2017_mscoco blind_2018_flickr) # sources without references, translated where they are at hand
blind_sources=${MULTI30K_DIR:-}

# flags by name, for `--with NAME`: other attentions of equal cache, how the mixing matrix starts and learns
declare -A with_flags=(
    [keys1]="--kv-heads 1" [keys2]="--kv-heads 2" [latent64]="--kv-latent-dim 64"
    [blocks]="--mixing-init blocks" [normal]="--mixing-init normal"
    [blocks8]="--mixing-init blocks --mixing-lr-multiplier 8")
for groups in 1 2; do with_flags[blocks8_values$groups]="${with_flags[blocks8]} --value-heads $groups"; done

# HEADS:KEY_DIM[:NAME] of a sweep
runs=(none:128 encoder_cross_decoder:128 none:64 encoder_cross_decoder:64
    none:32 encoder_cross_decoder:32 none:16 encoder_cross_decoder:16)
arch=transformer_collab_tiny
key_dim=
default_key_dim=32 # with collaborative heads; `none` keeps the embedding width
updates=1500
warmup=800
saves=30 # checkpoints over a whole run; the last $average of them are averaged
log_interval=25

cpu_precision=fp32 # of what is recorded, in place of measuring the CPU
gpus=1
batch_tokens=4096
largest_tokens=4096

# the dimensions of transformer_collab_tiny, for fairseq's own transformer (--stock)
stock_flags=(--arch transformer
    --encoder-layers 4 --encoder-embed-dim 128 --encoder-ffn-embed-dim 256 --encoder-attention-heads 4
    --decoder-layers 4 --decoder-embed-dim 128 --decoder-ffn-embed-dim 256 --decoder-attention-heads 4)
shared_model_flags=(--share-all-embeddings --dropout 0.3)
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
    --lr 0.005 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-07
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1)
generation_flags=(--beam 5 --max-tokens 4000 --remove-bpe sentencepiece)
