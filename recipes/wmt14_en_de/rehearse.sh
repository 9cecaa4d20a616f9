#!/usr/bin/env bash
# WMT14 English-German. Rehearse every script of this recipe on a miniature of the corpus. See --help.
# shellcheck source=recipes/runner/start.sh
. "$(dirname "${BASH_SOURCE[0]}")/../runner/start.sh"
