#!/usr/bin/env bash
# WMT14 English-German, untokenised, with SentencePiece. One run from data to record. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
