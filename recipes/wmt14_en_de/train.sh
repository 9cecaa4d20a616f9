#!/usr/bin/env bash
# WMT14 English-German. Train one model. See --help.
set -euo pipefail

recipe=wmt14_en_de step=train
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
