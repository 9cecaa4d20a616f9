#!/usr/bin/env bash
# Training on your own text: from two raw text files, or a folder of them, to a model that translates. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes own "$@"
