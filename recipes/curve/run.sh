#!/usr/bin/env bash
# Loss against key dimension, from data to record. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes curve "$@"
