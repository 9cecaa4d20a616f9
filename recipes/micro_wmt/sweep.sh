#!/usr/bin/env bash
# Micro-WMT English-German: standard and collaborative heads at several key dimensions, and their table. See --help.
set -euo pipefail

recipe=micro_wmt step=sweep
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
