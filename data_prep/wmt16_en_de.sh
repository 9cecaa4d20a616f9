#!/usr/bin/env bash
# WMT14 English-German as preprocessed by Google (the data of the paper) for fairseq. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"
