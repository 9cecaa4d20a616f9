#!/usr/bin/env bash
# Demo: generate a corpus, train three small models, compare their scores; all in minutes. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes demo "$@"
