#!/usr/bin/env bash
# Your own corpus for fairseq, with SentencePiece. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"
