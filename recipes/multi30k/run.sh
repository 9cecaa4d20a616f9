#!/usr/bin/env bash
# Multi30K English-German from raw text to BLEU: prepare, train, average, translate, score, record. See --help.
set -euo pipefail

recipe=multi30k
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"
# shellcheck source=recipes/lib/train.sh
. "$root/recipes/lib/train.sh"
# shellcheck source=recipes/lib/evaluate.sh
. "$root/recipes/lib/evaluate.sh"
# shellcheck source=recipes/multi30k/config.sh
. "$root/recipes/multi30k/config.sh"

usage() {
    cat <<EOF
usage: recipes/multi30k/run.sh [options] [-- FLAGS of fairseq-train ...]

Train a tiny transformer on Multi30K English-German, average its last $average checkpoints, translate both test sets,
print tokenised, compound-split and sacreBLEU and write a record of the run.

  --heads SITES     collaborative heads: encoder, cross, decoder joined by _, or none (default: $heads)
  --key-dim N       shared key dimension (default: $default_key_dim; with --heads none the embedding width)
  --arch NAME       a preset of this project (default: $arch)
  --stock           fairseq's own transformer of the same size instead (no --heads, --key-dim, --arch)
  --updates N       length of the training (default: $updates)
  --warmup N        warm-up updates of the learning rate (default: $warmup)
  --average N       average the last N checkpoints (default: $average; there are $saves in a run)
  --seed N          (default: $seed)
  --data DIR        prepared by data_prep/multi30k.sh, which is run where DIR does not exist (default: data/multi30k)
  --source DIR      the corpus as downloaded, for data_prep/multi30k.sh --source
  --output DIR      where the run goes (default: runs/multi30k/<what it is>)
  --device NAME     auto, gpu or cpu (default: auto: one GPU where there is one)
  --threads N       CPU threads (default: the number of cores)
  --python PROGRAM  Python with the project installed (default: \$PYTHON, else python)

The same command continues an interrupted run; finished steps are skipped.
OUTPUT: settings.txt, train.log, checkpoints/, averaged.pt, <test set>.generate.log, <test set>.scores.json, record.json.
EOF
}

command_line="recipes/multi30k/run.sh $*"
python=${PYTHON:-python}
threads=
output=
source_dir=
stock=no
heads_given=
arch_given=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --stock) stock=yes && shift && continue ;;
        --) shift && break ;;
        --*) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
        --heads) heads=$2 heads_given=yes ;;
        --key-dim) key_dim=$2 && need_number "$1" "$2" ;;
        --arch) arch=$2 arch_given=yes ;;
        --updates) updates=$2 && need_number "$1" "$2" ;;
        --warmup) warmup=$2 && need_number "$1" "$2" ;;
        --average) average=$2 && need_number "$1" "$2" ;;
        --seed) seed=$2 && need_number "$1" "$2" ;;
        --data) data=$2 ;;
        --source) source_dir=$2 ;;
        --output) output=$2 ;;
        --device) device=$2 ;;
        --threads) threads=$2 && need_number "$1" "$2" ;;
        --python) python=$2 ;;
        *) die "unknown argument '$1' (see --help; flags of fairseq-train follow a --)" ;;
    esac
    shift 2
done
extra_flags=("$@")

[ "$stock" = no ] || [ -z "$heads_given$arch_given$key_dim" ] || die "--stock excludes --heads, --key-dim and --arch"
find_tools
find_device
[ -n "$threads" ] || threads=$("$python" -c 'import os; print(os.cpu_count())')
data=$(absolute "$data")
data_bin=$data/data-bin
save_interval=$((updates / saves > 0 ? updates / saves : 1))

if [ "$stock" = yes ]; then
    run_name=$recipe-stock-s$seed-u$updates
    user_dir_flags=()
    model_flags=("${stock_flags[@]}")
else
    [ -n "$key_dim" ] || [ "$heads" = none ] || key_dim=$default_key_dim
    run_name=$recipe-$heads${key_dim:+-dk$key_dim}-s$seed-u$updates
    user_dir_flags=(--user-dir "$("$scripts/collab" user-dir)")
    model_flags=("${user_dir_flags[@]}" --arch "$arch" --collaborative-heads "$heads" ${key_dim:+--key-dim "$key_dim"})
fi
model_flags+=("${shared_model_flags[@]}")
optimisation_flags+=(--warmup-updates "$warmup")
output=$(absolute "${output:-$root/runs/multi30k/${run_name#"$recipe-"}}")

if [ ! -d "$data_bin" ] || [ ! -f "$data/prepared.txt" ]; then
    "$prepare" --output "$data" --python "$python" ${source_dir:+--source "$source_dir"} || die "the data could not be prepared"
fi

mkdir -p "$output"
keep_settings "$output/settings.txt" <<EOF
$run_name
data $(cut -c1-64 "$data/SHA256SUMS" | sort -u | cksum | cut -d' ' -f1)
average $average every $save_interval updates, device $device
${model_flags[*]#"$root/"}
${optimisation_flags[*]}
${generation_flags[*]}
extra ${extra_flags[*]}
EOF

train
average
translate
score
record
