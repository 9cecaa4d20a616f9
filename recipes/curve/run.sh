#!/usr/bin/env bash
# One training of the curve, from raw text to its record: prepare, train, average, translate, score, record. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
