#!/usr/bin/env bash
# WMT14 English-German. Train one model. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
