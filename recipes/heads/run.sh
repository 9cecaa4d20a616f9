#!/usr/bin/env bash
# All head analyses of one trained translation model (`collab heads`). See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../start.sh" recipes heads "$@"
