#!/usr/bin/env bash
# Demo: generate a corpus, train three small models, compare their scores; all in minutes. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
