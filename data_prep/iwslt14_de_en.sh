#!/usr/bin/env bash
# IWSLT14 German-English (TED talks) with SentencePiece. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$0" "$@"
