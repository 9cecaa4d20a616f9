#!/usr/bin/env bash
# Conversion of a trained translation model to collaborative heads, with and without fine-tuning. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
