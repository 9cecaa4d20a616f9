#!/usr/bin/env bash
# The generated corpus of the demo: one run from data to record. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
