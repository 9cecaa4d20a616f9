#!/usr/bin/env bash
# Run fairseq's own tests with the hook, and once more with transformer_collab in place of transformer. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
