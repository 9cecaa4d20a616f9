#!/usr/bin/env bash
# WMT14 English-German, untokenised, with SentencePiece. Standard and collaborative heads at several key dimensions, and their table. See --help.
set -euo pipefail

recipe=wmt14_en_de_spm step=sweep
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
