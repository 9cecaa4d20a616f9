# shellcheck shell=bash disable=SC2034,SC2154
# IWSLT14 German-English: 6+6 layers, width 512, FFN 1024, 4 heads, with the training of fairseq's own example for it.
# Settings only; recipes/lib does the work.

about="IWSLT14 German-English, a transformer for small data"
source_lang=de
target_lang=en
source_option=--archive
tests=(test:test)

# HEADS:KEY_DIM of a sweep
runs=(none:512 encoder_cross_decoder:512 none:256 encoder_cross_decoder:256
    none:128 encoder_cross_decoder:128 none:64 encoder_cross_decoder:64)
arch=transformer_collab_iwslt_de_en
key_dim=512
updates=50000
warmup=4000
saves=50 # checkpoints over a whole run, each with a validation; the last $average of them are averaged
log_interval=100

gpus=1
batch_tokens=4096
largest_tokens=4096

shared_model_flags=(--share-all-embeddings --dropout 0.3)
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --weight-decay 0.0001
    --lr 5e-4 --lr-scheduler inverse_sqrt --criterion label_smoothed_cross_entropy --label-smoothing 0.1)
generation_flags=(--beam 5 --max-tokens 4000 --remove-bpe sentencepiece)
