#!/usr/bin/env bash
# Training on your own text: from two raw text files, or a folder of them, to a model that translates. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
