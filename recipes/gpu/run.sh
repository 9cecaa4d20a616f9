#!/usr/bin/env bash
# Half an hour of one GPU, in three calls: truth, speed, learning. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
