#!/usr/bin/env bash
# Every script of this recipe on a miniature archive, with a kill in the middle. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
