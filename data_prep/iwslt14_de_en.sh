#!/usr/bin/env bash
# IWSLT14 German-English (TED talks) for fairseq, with SentencePiece. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"
