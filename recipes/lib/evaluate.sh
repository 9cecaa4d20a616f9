# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Translating, scoring and recording for all recipes. Sourced; uses common.sh and the settings of a recipe's config.sh.
# $tests holds SUBSET:NAME pairs. The raw references of NAME are $reference, else $data/raw/NAME.$target_lang, else those
# of a sacreBLEU test set, named in ${sacrebleu_sets[NAME]}.

find_references() { # NAME: sets file, its raw references
    file=${reference:-$data/raw/$1.$target_lang}
    if [ -z "${reference:-}" ] && [ ! -f "$file" ] && [ -n "${sacrebleu_sets[$1]:-}" ]; then
        file=$data/references/$1.$target_lang
        [ -f "$file" ] || fetch_references "${sacrebleu_sets[$1]}" "$file"
    fi
    [ -f "$file" ] || die "there are no references $file; name a file of raw references with --reference"
}

fetch_references() { # SET FILE: the references of a sacreBLEU test set
    say "fetching the references of $1"
    mkdir -p "$(dirname "$2")"
    "$python" -m sacrebleu --test-set "$1" --language-pair "$source_lang-$target_lang" --echo ref >"$2.tmp" 2>"$2.err" || {
        tail -n 1 "$2.err" >&2
        rm -f "$2.tmp" "$2.err"
        die "the references could not be fetched; where there is internet, run" \
            "'python -m sacrebleu -t $1 -l $source_lang-$target_lang --echo ref > FILE' and give --reference FILE"
    }
    rm -f "$2.err"
    mv "$2.tmp" "$2"
}

translate() {
    local pair subset name log averaged=averaged${variant:-}.pt
    for pair in "${tests[@]}"; do
        subset=${pair%%:*} name=${pair#*:} log=$output/$name${variant:-}.generate.log
        finished "translate.$name${variant:-}" && { say "translating $name: done before"; continue; }
        say "translating $name"
        OMP_NUM_THREADS=$threads "$scripts/fairseq-generate" "$data_bin" --path "$output/$averaged" --gen-subset "$subset" \
            "${task_flags[@]}" "${generation_flags[@]}" "${user_dir_flags[@]}" "${device_flags[@]}" \
            --seed "$seed" --num-workers 0 >"$log.tmp" 2>"$log.err" ||
            { tail -n 5 "$log.tmp" "$log.err" >&2; die "translating $name failed, see $log.err"; }
        mv "$log.tmp" "$log"
        rm -f "$log.err"
        finish "translate.$name${variant:-}"
    done
}

score() { # prints the three BLEUs of every test set, keeps them as NAME.scores.json and what was scored in hypotheses/
    local pair name file
    mkdir -p "$output/hypotheses"
    for pair in "${tests[@]}"; do
        name=${pair#*:}
        find_references "$name"
        echo "$name"
        "$scripts/collab" score "$output/$name${variant:-}.generate.log" --reference "$file" \
            --target-lang "$target_lang" --json "$output/$name${variant:-}.scores.json" \
            --hypotheses "$output/hypotheses/$name${variant:-}.$target_lang.gz" || die "scoring $name failed"
        check_lengths "$name" "$output/$name${variant:-}.scores.json" ||
            die "$name was scored against other references than those of the published results"
    done
}

check_lengths() { # TEST_SET SCORES: the reference lengths that prepared.txt gives tell that it is the published test set
    local row
    row=$(grep "^reference	$1	" "$data/prepared.txt" 2>/dev/null) || {
        say "$1: reference lengths not checked, since $data/prepared.txt gives none (not the published test set)"
        return 0
    }
    "$python" - "$2" "$row" <<'PYTHON'
import json
import sys

_, name, *expected = sys.argv[2].split("\t")
with open(sys.argv[1], encoding="utf-8") as stream:
    found = {score["metric"]: score["ref_len"] for score in json.load(stream)["scores"]}
for metric, length in zip(("compound-split BLEU", "sacreBLEU"), expected):
    if length == "-":
        continue
    if found.get(metric) != int(length):
        sys.exit(f"{name}: {metric} has {found.get(metric)} tokens in its references, expected {length}")
    print(f"{name}: {metric} has the {length} tokens in its references that published results have")
PYTHON
}

record() { # one JSON of everything that was done and seen
    local what=${variant:-}${result:-} pair flags=() at
    at=$(grep -o '^\.u[0-9]*' <<<"${variant:-}") || at=''
    local file=$output/record$what.json
    finished "record$what" && { say "record: $file"; return; }
    # a downloaded archive of the project has no commit to note, nor has a checkout that git does not trust
    if git -C "$root" rev-parse --verify HEAD >/dev/null 2>&1; then flags+=(--repository "$root"); fi
    for pair in "${tests[@]}"; do flags+=(--scores "${pair#*:}=$output/${pair#*:}${variant:-}.scores.json"); done
    for pair in valid:valid "${tests[@]}"; do flags+=(--loss "${pair#*:}=${pair%%:*}"); done
    "$scripts/collab" record --name "$run_name$what" --checkpoint "$output/averaged${variant:-}.pt" \
        --train-log "$output/train$at.log" --usage "$output/train$at.usage.jsonl" --seed "$seed" --threads "$threads" \
        --data-sums "$data/SHA256SUMS" --started-as "$command_line" --data "$data_bin" --output "$file" "${flags[@]}" ||
        die "the record could not be written"
    finish "record$what"
    say "record: $file"
}

publish() { # $output/model for `collab translate`; with it translations of $blind, whose references are elsewhere
    [ ${#blind[@]} -gt 0 ] && [ -z "${variant:-}${result:-}" ] || return 0
    local name text corpus=${source_option#--}
    corpus=${!corpus:-$blind_sources}
    [ -d "$output/model" ] || "$scripts/collab" export "$output/averaged.pt" --to folder --half --data "$data_bin" \
        --record "$output/record.json" --output "$output/model" || die "the model folder could not be written"
    for name in "${blind[@]}"; do
        text=$output/hypotheses/$name.$target_lang.gz
        [ ! -f "$text" ] || { say "translating $name: done before"; continue; }
        [ -n "$corpus" ] || { say "translating $name: $source_option does not say where its text is"; continue; }
        [ -f "$corpus/$name.$source_lang.gz" ] || { say "translating $name: there is no $corpus/$name.$source_lang.gz"; continue; }
        say "translating $name"
        gzip -dc "$corpus/$name.$source_lang.gz" | "$scripts/collab" translate "$output/model" --beam 5 --threads "$threads" \
            --device "${device/gpu/cuda}" | gzip -n >"$text.tmp" || die "translating $name failed"
        mv "$text.tmp" "$text"
    done
}
