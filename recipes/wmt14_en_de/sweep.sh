#!/usr/bin/env bash
# WMT14 English-German. The eight runs of the paper and their table. See --help.
set -euo pipefail

recipe=wmt14_en_de step=sweep
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
