# shellcheck shell=bash disable=SC2034,SC2154
# The demo: three small transformers on the corpus of data_prep/toy.py. Settings only; run.sh does the work.

source_lang=en
target_lang=de
tests=(test:test)
vocab_size=1500
train=12000
valid=500
test=500

# NAME:HEADS:KEY_DIM; 64 is the full key dim, the embedding width
models=(standard-64:none:64 standard-16:none:16 collaborative-16:encoder_cross_decoder:16)
arch=transformer_collab_tiny
updates=1500
warmup=300
seed=1
average=5
saves=20 # checkpoints over a whole run, each with a validation; the last $average of them are averaged
log_interval=25
threads=1 # per model; the three are trained at the same time

task_flags=(--task translation --source-lang en --target-lang de)
shared_model_flags=(--share-all-embeddings --dropout 0.1
    --encoder-layers 2 --encoder-embed-dim 64 --encoder-ffn-embed-dim 128 --encoder-attention-heads 4
    --decoder-layers 2 --decoder-embed-dim 64 --decoder-ffn-embed-dim 128 --decoder-attention-heads 4)
# no saving and validating at the ends of epochs, of which there are many
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
    --lr 0.005 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-07
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2000
    --save-interval 1000000 --validate-interval 1000000)
generation_flags=(--beam 4 --max-tokens 4000 --remove-bpe sentencepiece)
