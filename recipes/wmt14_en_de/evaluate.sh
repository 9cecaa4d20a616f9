#!/usr/bin/env bash
# WMT14 English-German. Translate, score and record a run. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
