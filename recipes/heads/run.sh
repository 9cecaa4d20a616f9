#!/usr/bin/env bash
# See, rank, prune and gate the heads of one trained translation model: all analyses of `collab heads`. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
