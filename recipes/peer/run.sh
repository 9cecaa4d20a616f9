#!/usr/bin/env bash
# Run fairseq's own tests with the hook, and once more with transformer_collab in place of transformer. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

usage() {
    cat <<EOF
usage: recipes/peer/run.sh --fairseq-tests DIR [options]

Run the tests of fairseq v0.12.2 in copies: as they are with the hook, and those that train a transformer again with
transformer_collab in its place. Prints a table by file beside what recipes/peer/expected.tsv expects; the status is 1
where something else fails.

  --fairseq-tests DIR  holds fairseq's folders tests, scripts and examples, such as a checkout of v0.12.2
  --files PATTERN      only files that match, such as 'tests/test_export.py' or 'tests/distributed/*' (default: all)
  --output DIR         (default: runs/peer)
  --python PROGRAM     Python with the project and pytest installed (default: \$PYTHON, else python)

OUTPUT: table.md, and in hook/ and collab/ each file's output and JUnit XML. An earlier result is replaced.
EOF
}

python=${PYTHON:-python}
output='' fairseq_tests='' files='*'
read_options "$@"
[ -n "$fairseq_tests" ] || die "--fairseq-tests is needed (see --help)"
[ -f "$fairseq_tests/tests/test_binaries.py" ] || die "--fairseq-tests $fairseq_tests has no tests/test_binaries.py"
find_tools
output=$(absolute "${output:-$root/runs/peer}")
exec "$python" "$root/recipes/peer/peer.py" --tests "$(absolute "$fairseq_tests")" --files "$files" --output "$output"
