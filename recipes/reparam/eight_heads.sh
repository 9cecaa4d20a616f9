# shellcheck shell=bash disable=SC2034
# The second trained model of the conversion study: fairseq's own transformer with 2+2 layers, width 256, 8 heads.
# Settings for `recipes/multi30k/run.sh --stock --config recipes/reparam/eight_heads.sh`.

# the learning rate falls to zero at the last update, so that the validation loss has settled there
updates=3000
warmup=600
stock_flags=(--arch transformer
    --encoder-layers 2 --encoder-embed-dim 256 --encoder-ffn-embed-dim 512 --encoder-attention-heads 8
    --decoder-layers 2 --decoder-embed-dim 256 --decoder-ffn-embed-dim 512 --decoder-attention-heads 8)
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0
    --lr 0.002 --lr-scheduler cosine --warmup-init-lr 1e-07
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1)
