# shellcheck shell=bash disable=SC2034,SC2154
# Small transformers on the corpus of data_prep/toy.py, for recipes/demo. Settings only; recipes/lib does the work.

about="A generated English-German corpus with a small transformer, as in the demo"
tests=(test:test)
# the full key dim, the embedding width, and a quarter of it
runs=(none:64 none:16 encoder_cross_decoder:16)
arch=transformer_collab_tiny
key_dim=16
updates=1500
warmup=300
saves=20 # checkpoints over a whole run, each with a validation; the last $average of them are averaged
log_interval=25

fast=yes
cpu_precision=fp32
gpus=1
batch_tokens=2000
largest_tokens=2000

shared_model_flags=(--share-all-embeddings --dropout 0.1
    --encoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 4
    --decoder-layers 2 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 --decoder-attention-heads 4)
# no saving and validating at the ends of epochs, of which there are many
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
    --lr 0.005 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-07
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1
    --save-interval 1000000 --validate-interval 1000000)
generation_flags=(--beam 4 --max-tokens 4000 --remove-bpe sentencepiece)
