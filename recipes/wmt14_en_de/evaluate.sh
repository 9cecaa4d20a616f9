#!/usr/bin/env bash
# WMT14 English-German. Translate, score and record a run. See --help.
set -euo pipefail

recipe=wmt14_en_de step=evaluate
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
