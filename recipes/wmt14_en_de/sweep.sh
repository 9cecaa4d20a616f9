#!/usr/bin/env bash
# WMT14 English-German. The eight runs of the paper and their table. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
