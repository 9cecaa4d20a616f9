# shellcheck shell=bash disable=SC2034,SC2154
# Micro-WMT English-German with the tiny transformer of recipes/multi30k and its settings, the learning rate falling to zero.

# shellcheck source=recipes/multi30k/config.sh
. "$root/recipes/multi30k/config.sh"
# shellcheck source=recipes/multi30k/table.sh
. "$root/recipes/multi30k/table.sh"

about="Micro-WMT English-German (190,591 pairs, mostly Tatoeba) with a tiny transformer"
tests=(test:tatoeba_test)
blind=(newstest2014 tatoeba_blind)
blind_sources=${MICRO_WMT_DIR:-}
valid_tests=(valid:tatoeba_valid valid1:newstest2013)
updates=6000
# fairseq takes the language files of valid1 for subsets that were forgotten
optimisation_flags+=(--valid-subset valid,valid1 --ignore-unused-valid-subsets)
