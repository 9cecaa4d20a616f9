#!/usr/bin/env bash
# The trainings of the curve, one after the other, and their table. See --help.
# shellcheck source=recipes/lib/recipe.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib/recipe.sh"
