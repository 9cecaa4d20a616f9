#!/usr/bin/env bash
# Micro-WMT English-German from raw text to BLEU: prepare, train, average, translate, score, record. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
