# shellcheck shell=bash disable=SC2034
# Start wide: half of the updates of the main table with standard heads of full width, which are then converted to a quarter
# of the key dimensions and trained on. Settings for `recipes/multi30k/sweep.sh --config recipes/multi30k/wide.sh`.

# shellcheck source=recipes/multi30k/table.sh
. "$root/recipes/multi30k/table.sh"
wide=1995 # a multiple of the updates between checkpoints: the standard run of the table has a checkpoint there
runs=(encoder_cross_decoder:32)
