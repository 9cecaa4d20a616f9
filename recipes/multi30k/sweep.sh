#!/usr/bin/env bash
# Multi30k English-German. Standard and collaborative heads at several key dimensions, and their table. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
