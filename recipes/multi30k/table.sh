# shellcheck shell=bash disable=SC2034
# The main table: longer trainings whose learning rate falls to zero, so that the validation loss has settled at the end.
# Settings for `recipes/multi30k/run.sh --config recipes/multi30k/table.sh` and `sweep.sh`.

updates=4000
optimisation_flags+=(--lr-scheduler cosine)
