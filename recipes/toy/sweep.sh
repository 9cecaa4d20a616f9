#!/usr/bin/env bash
# Generated corpus of the demo. Several runs and their table. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
