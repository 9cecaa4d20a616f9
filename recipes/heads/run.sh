#!/usr/bin/env bash
# All head analyses of one trained translation model (`collab heads`). See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
