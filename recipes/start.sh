#!/usr/bin/env bash
# Start a recipe or a data preparation, for recipes/NAME/run.sh and data_prep/NAME.sh: start.sh PACKAGE NAME [OPTIONS]
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
exec "${PYTHON:-$(command -v python || command -v python3)}" -m "$@"
