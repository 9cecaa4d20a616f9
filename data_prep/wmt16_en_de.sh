#!/usr/bin/env bash
# WMT14 English-German as Google preprocessed it (the set of the paper) -> fairseq data-bin. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"
