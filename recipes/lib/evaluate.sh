# shellcheck shell=bash disable=SC2154  # a sourced file: the sourcing script assigns what it uses
# Translating, scoring and recording for all recipes. Sourced; uses common.sh and the settings of a recipe's config.sh.
# $tests holds SUBSET:NAME pairs; the raw references are $data/raw/NAME.$target_lang.

translate() {
    local pair subset name log
    for pair in "${tests[@]}"; do
        subset=${pair%%:*} name=${pair#*:} log=$output/$name.generate.log
        finished "translate.$name" && { say "translating $name: done before"; continue; }
        say "translating $name"
        OMP_NUM_THREADS=$threads "$scripts/fairseq-generate" "$data_bin" --path "$output/averaged.pt" --gen-subset "$subset" \
            "${task_flags[@]}" "${generation_flags[@]}" "${user_dir_flags[@]}" "${device_flags[@]}" \
            --seed "$seed" --num-workers 0 >"$log.tmp" 2>"$log.err" ||
            { tail -n 5 "$log.tmp" "$log.err" >&2; die "translating $name failed, see $log.err"; }
        mv "$log.tmp" "$log"
        rm -f "$log.err"
        finish "translate.$name"
    done
}

score() { # prints the three BLEUs of every test set, and keeps them as NAME.scores.json
    local pair name
    for pair in "${tests[@]}"; do
        name=${pair#*:}
        echo "$name"
        "$scripts/collab" score "$output/$name.generate.log" --reference "$data/raw/$name.$target_lang" \
            --target-lang "$target_lang" --json "$output/$name.scores.json" || die "scoring $name failed"
    done
}

record() { # one JSON of everything that was done and seen
    finished record && { say "record: $output/record.json"; return; }
    local pair flags=()
    # a downloaded archive of the project has no commit to note, nor has a checkout that git does not trust
    if git -C "$root" rev-parse --verify HEAD >/dev/null 2>&1; then flags+=(--repository "$root"); fi
    for pair in "${tests[@]}"; do flags+=(--scores "${pair#*:}=$output/${pair#*:}.scores.json"); done
    "$scripts/collab" record --name "$run_name" --checkpoint "$output/averaged.pt" \
        --train-log "$output/train.log" --usage "$output/train.usage.jsonl" --seed "$seed" --threads "$threads" \
        --data-sums "$data/SHA256SUMS" --started-as "$command_line" --output "$output/record.json" "${flags[@]}" ||
        die "the record could not be written"
    finish record
    say "record: $output/record.json"
}
