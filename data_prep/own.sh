#!/usr/bin/env bash
# Two raw text files of your own, or a folder of them -> joint SentencePiece BPE -> fairseq data-bin. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../recipes/runner/start.sh"
