#!/usr/bin/env bash
# WMT14 English-German. One run from data to record. See --help.
set -euo pipefail

recipe=wmt14_en_de step=run
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
