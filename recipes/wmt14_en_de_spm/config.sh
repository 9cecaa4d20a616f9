# shellcheck shell=bash disable=SC2034,SC2154,SC1091
# WMT14 English-German from the raw corpora, SentencePiece instead of tokenised BPE: sacreBLEU alone is to be compared.
# Model and training are those of recipes/wmt14_en_de.

. "$root/recipes/wmt14_en_de/config.sh"

about="WMT14 English-German with SentencePiece, a transformer base"
data=$root/data/$recipe
prepare=$root/data_prep/$recipe.sh
source_option=--source
sacrebleu_sets=() # the raw text of both sets is among the data
generation_flags+=(sentencepiece) # of --remove-bpe
