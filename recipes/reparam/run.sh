#!/usr/bin/env bash
# Conversion of a trained translation model to collaborative heads, with and without fine-tuning. See --help.
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m recipes reparam "$@"
