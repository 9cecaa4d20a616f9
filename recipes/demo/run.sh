#!/usr/bin/env bash
# The whole job in minutes: a generated corpus, three small models, their scores side by side. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
