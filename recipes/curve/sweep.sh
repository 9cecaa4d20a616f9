#!/usr/bin/env bash
# Loss against key dimension: the runs of the study and their table. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
