#!/usr/bin/env bash
# The trainings of the curve, one after the other, and their table. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
