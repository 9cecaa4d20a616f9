#!/usr/bin/env bash
# WMT14 English-German. Train one model. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
