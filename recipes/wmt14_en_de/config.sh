# shellcheck shell=bash disable=SC2034,SC2154
# WMT14 English-German as in the paper (Table 3): 6+6 layers, width 512, FFN 2048, 8 heads, Google's preprocessed set.
# The settings of model and training are those of conf/wmt14_en_de.yaml, which fairseq-hydra-train reads as well: the batch
# is that of the paper's 4 GPUs x 3584 tokens x update-freq 2, on whatever machine. recipes/lib does the work.

# shellcheck source=recipes/lib/hydra.sh
. "$root/recipes/lib/hydra.sh"
read_hydra "$root/recipes/wmt14_en_de/conf/wmt14_en_de.yaml"

about="WMT14 English-German as in the paper, a transformer base"
data=$root/data/wmt16_en_de
prepare=$root/data_prep/wmt16_en_de.sh
source_option=--archive
tests=(test:newstest2014)
valid_tests=(valid:newstest2013)
sacrebleu_sets=([newstest2014]=wmt14/full [newstest2013]=wmt13)
stages=3 # averages after 100,000, 200,000 and 300,000 updates: how many the paper made is not known
# HEADS:KEY_DIM of the eight runs of the paper
runs=(none:512 encoder_cross_decoder:512 none:256 encoder_cross_decoder:256
    none:128 encoder_cross_decoder:128 none:64 encoder_cross_decoder:64)
# the length limit of Vaswani et al.: that of the input and 50
generation_flags=(--beam 4 --lenpen 0.6 --max-len-a 1 --max-len-b 50 --max-tokens 8000 --remove-bpe)
