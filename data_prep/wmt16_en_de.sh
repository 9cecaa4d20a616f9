#!/usr/bin/env bash
# WMT14 English-German as Google preprocessed it (the set of the paper) -> fairseq data-bin. See --help.
exec "${PYTHON:-$(command -v python || echo python3)}" "$(dirname "${BASH_SOURCE[0]}")/prepare.py" "$0" "$@"
