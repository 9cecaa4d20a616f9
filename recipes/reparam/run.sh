#!/usr/bin/env bash
# Conversion of a trained translation model to collaborative heads, with and without fine-tuning. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes reparam "$@"
