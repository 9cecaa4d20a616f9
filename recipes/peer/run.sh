#!/usr/bin/env bash
# Run fairseq's own tests with the hook, and once more with transformer_collab in place of transformer. See --help.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

usage() {
    cat <<EOF
usage: recipes/peer/run.sh --fairseq-tests DIR [options] [-- OPTIONS of pytest ...]

Run the tests of fairseq v0.12.2 in copies, file by file: as they are with the hook, and those that train a transformer again
with transformer_collab in its place. The status is 1 where something fails that recipes/peer/expected.tsv does not expect.

  --fairseq-tests DIR  holds fairseq's folders tests, scripts and examples, such as a checkout of v0.12.2
  --files PATTERN      only files that match, such as 'tests/test_export.py' or 'tests/distributed/*' (default: all)
  --output DIR         (default: runs/peer)
  --python PROGRAM     Python with the project and pytest installed (default: \$PYTHON, else python)

OUTPUT: summary.txt, a line for each file, and in hook/ and collab/ its output and JUnit XML. An earlier result is replaced.
EOF
}

python=${PYTHON:-python}
output='' fairseq_tests='' files='*'
read_options "$@"
[ -n "$fairseq_tests" ] || die "--fairseq-tests is needed (see --help)"
[ -f "$fairseq_tests/tests/test_binaries.py" ] || die "--fairseq-tests $fairseq_tests has no tests/test_binaries.py"
find_tools
output=$(absolute "${output:-$root/runs/peer}")
rm -rf "$output/hook" "$output/collab" "$output/summary.txt"
mkdir -p "$output/hook" "$output/collab"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 143' TERM

run_file() { # KIND FILE: in a process, with a home and a temporary folder of its own; some tests leave files there
    local name=${2//\//-} status=0 home=$work/home
    mkdir -p "$home"
    (cd "$work/$1" && HOME=$home TMPDIR=$home timeout 7200 "$python" -m pytest -q -p no:cacheprovider \
        --junitxml="$output/$1/${name%.py}.xml" "$2" "${rest[@]}") >"$output/$1/${name%.py}.log" 2>&1 </dev/null || status=$?
    echo "$1 $2: $(tail -n 1 "$output/$1/${name%.py}.log")" | tee -a "$output/summary.txt"
    [ "$status" -eq 0 ] || failed=yes
    rm -rf "$home"
}

failed=''
for kind in hook collab; do
    mkdir "$work/$kind"
    cp -r "$fairseq_tests"/{tests,scripts,examples} "$root"/recipes/peer/{conftest.py,expected.tsv} "$work/$kind"
    chmod -R u+w "$work/$kind" # the source may be read-only
    echo '[pytest]' >"$work/$kind/pytest.ini"
    pattern=. # the files that it is about
    if [ "$kind" = collab ]; then
        pattern='"transformer(_iwslt_de_en)?"'
        USER_DIR=$("$scripts/collab" user-dir) && export USER_DIR
    fi
    while read -r file; do
        # shellcheck disable=SC2053  # a pattern
        if ! [[ $file == $files ]] || ! grep -qE "$pattern" "$work/$kind/$file"; then continue; fi
        if [ "$kind" = collab ]; then sed -i -E "s/$pattern/\"transformer_collab\\1\"/g" "$work/$kind/$file"; fi
        if grep -q "^$file	not run	" "$root/recipes/peer/expected.tsv"; then
            echo "$kind $file: not run" | tee -a "$output/summary.txt"
        else
            run_file "$kind" "$file"
        fi
    done < <(cd "$work/$kind" && find tests -name 'test_*.py' | sort)
done
[ -z "$failed" ] || die "a test failed that is not expected to (see $output/summary.txt)"
