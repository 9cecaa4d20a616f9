# shellcheck shell=bash disable=SC2034,SC2154
# WMT14 English-German as in the paper (Table 3): 6+6 layers, width 512, FFN 2048, 8 heads, Google's preprocessed set.
# Settings only; recipes/lib does the work.

about="WMT14 English-German as in the paper, a transformer base"
source_lang=en
target_lang=de
data=$root/data/wmt16_en_de
prepare=$root/data_prep/wmt16_en_de.sh
source_option=--archive
tests=(test:newstest2014)
valid_tests=(valid:newstest2013)
sacrebleu_sets=(newstest2014:wmt14/full newstest2013:wmt13)

# HEADS:KEY_DIM of the eight runs of the paper
runs=(none:512 encoder_cross_decoder:512 none:256 encoder_cross_decoder:256
    none:128 encoder_cross_decoder:128 none:64 encoder_cross_decoder:64)
arch=transformer_collab
heads=encoder_cross_decoder
key_dim=512
updates=100000
warmup=4000
seed=1
average=5
saves=100 # checkpoints over a whole run, each with a validation
keep=10   # of them, so that the last ten can be averaged as well
log_interval=100
loaders=1

# 4 GPUs x 3584 tokens x update-freq 2 in the paper
batch_tokens=28672
largest_tokens=3584

task_flags=(--task translation --source-lang en --target-lang de)
shared_model_flags=(--share-all-embeddings --dropout 0.1)
optimisation_flags=(--optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 0.0 --weight-decay 0.0
    --lr 0.0007 --lr-scheduler inverse_sqrt --warmup-init-lr 1e-07 --stop-min-lr 1e-09
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1)
# the length limit of Vaswani et al.: that of the input and 50
generation_flags=(--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --max-tokens 8000 --remove-bpe)
