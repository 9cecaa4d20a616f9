#!/usr/bin/env bash
# IWSLT14 German-English with SentencePiece. Standard and collaborative heads at several key dimensions, and their table. See --help.
set -euo pipefail

recipe=iwslt14_de_en step=sweep
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
