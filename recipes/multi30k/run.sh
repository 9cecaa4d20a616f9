#!/usr/bin/env bash
# Multi30k English-German. One run from data to record. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
