#!/usr/bin/env bash
# WMT14 English-German. The eight runs of the paper and their table. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
