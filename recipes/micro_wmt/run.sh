#!/usr/bin/env bash
# Micro-WMT English-German, from data to record. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes micro_wmt "$@"
