#!/usr/bin/env bash
# Table 2 of the paper: fine-tune on GLUE, make the heads collaborative, fine-tune again. See --help.
set -euo pipefail

recipe=glue
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck source=recipes/lib/common.sh
. "$root/recipes/lib/common.sh"

model=google-bert/bert-base-uncased
tasks=cola,sst2,mrpc,stsb,qqp,mnli,qnli,rte
seed=1

usage() {
    cat <<EOF
usage: recipes/glue/run.sh [options] [-- options of study.py]

For each task: fine-tune a model with standard heads, make its heads collaborative at several key dims, fine-tune each
of these again. Ends with a table like Table 2 of the paper, the paper's numbers beside.

  --model NAME      BERT, DistilBERT or ALBERT: a name of the Hugging Face hub, or a folder (default: $model)
  --key-dims LIST   (default: the paper's. BERT: 768,384,256,128, DistilBERT: 384, ALBERT: 512,384)
  --tasks LIST      (default: $tasks)
  --data DIR        of prepare.py, which is run for tasks that are missing there (default: data/glue)
  --seed N          (default: $seed)
  --output DIR      (default: runs/glue/<model>/seed<N>)
  --python PROGRAM  Python with the project and its extra huggingface (default: \$PYTHON, else python)

Options of study.py: --epochs, --lr, --batch-size, --max-length, --calibration, --cpu (study.py --help).
The same command continues an interrupted run at the last epoch that was finished, and skips what is finished.
OUTPUT: one folder per task with the models and record.json, table.md.
EOF
}

python=${PYTHON:-python}
output=
data=$root/data/glue
key_dims=
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage && exit 0 ;;
        --) shift && break ;;
        --*) [ $# -ge 2 ] || die "$1 needs a value (see --help)" ;;
    esac
    case $1 in
        --model) model=$2 ;;
        --key-dims) key_dims=$2 ;;
        --tasks) tasks=$2 ;;
        --data) data=$2 ;;
        --seed) seed=$2 && need_number "$1" "$2" ;;
        --output) output=$2 ;;
        --python) python=$2 ;;
        *) die "unknown argument '$1' (see --help)" ;;
    esac
    shift 2
done

if [ -z "$key_dims" ]; then
    case $model in
        *[Dd]istil[Bb][Ee][Rr][Tt]*) key_dims=384 ;;
        *[Aa][Ll][Bb][Ee][Rr][Tt]*) key_dims=512,384 ;;
        *[Bb][Ee][Rr][Tt]*) key_dims=768,384,256,128 ;;
        *) die "the paper has no key dims for '$model'; name them with --key-dims" ;;
    esac
fi
command -v "$python" >/dev/null || die "no Python '$python'; name one with --python"
"$python" -c 'import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ("transformers", "collab_fairseq"))))' ||
    die "'$python' needs pip install 'collab_fairseq[huggingface]'"
[ -e "$model" ] && model=$(absolute "$model")
name=${model%/}
output=$(absolute "${output:-$root/runs/glue/${name##*/}/seed$seed}")
data=$(absolute "$data")

records=()
IFS=, read -ra names <<<"$tasks"
for task in "${names[@]}"; do
    if [ "$task" != toy ] && [ ! -d "$data/$task" ]; then
        "$python" "$root/recipes/glue/prepare.py" --output "$data" --tasks "$task" || die "no data of the task $task"
    fi
    say "$task: $model, key dims $key_dims, seed $seed"
    "$python" "$root/recipes/glue/study.py" --task "$task" --model "$model" --data "$data" --key-dims "$key_dims" \
        --seed "$seed" --output "$output/$task" "$@" >&2 || die "$task is not finished; the same command goes on from here"
    records+=("$output/$task/record.json")
done
"$python" "$root/recipes/glue/table.py" "${records[@]}" --output "$output/table.md" >&2
cat "$output/table.md"
