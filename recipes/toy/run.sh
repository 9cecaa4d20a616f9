#!/usr/bin/env bash
# Generated corpus of the demo, from data to record. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes toy "$@"
