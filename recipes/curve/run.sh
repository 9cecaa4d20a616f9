#!/usr/bin/env bash
# Loss against key dimension: one run from data to record. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
