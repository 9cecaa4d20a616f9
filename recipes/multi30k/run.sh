#!/usr/bin/env bash
# Multi30K English-German from raw text to BLEU: prepare, train, average, translate, score, record. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
