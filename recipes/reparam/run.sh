#!/usr/bin/env bash
# What it costs a trained translation model to get collaborative heads, with and without fine-tuning. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
