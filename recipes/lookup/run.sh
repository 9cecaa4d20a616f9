#!/usr/bin/env bash
# Lookup: a synthetic task for heads with shared and with disjoint attributes. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes lookup "$@"
