#!/usr/bin/env bash
# WMT14 English-German. Translate, score and record a run. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
