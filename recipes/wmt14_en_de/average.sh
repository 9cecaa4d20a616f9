#!/usr/bin/env bash
# WMT14 English-German. Average the last checkpoints of a run. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
