#!/usr/bin/env bash
# Generated corpus of the demo. One run from data to record. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
