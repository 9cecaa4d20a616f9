#!/usr/bin/env bash
# Multi30k English-German, from data to record. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes multi30k "$@"
