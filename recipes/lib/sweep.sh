# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: the sourcing script assigns and uses what is here
# Several runs of a recipe and their table. Sourced by recipe.sh; each run is run.sh of the recipe. $runs holds
# HEADS:KEY_DIM[:NAME], NAME of $with_flags.

seeds='' jobs=1 submit='' table='' passed=()

sweep_usage() {
    cat <<END
usage: recipes/$recipe/sweep.sh [options] [-- FLAGS of fairseq-train ...]

  --runs "A:N ..."  head sites and key dimension of each run, and a name of run.sh --with (default: ${runs[*]})
  --seeds N,N,...   each run once per seed (default: $seed)
  --jobs N          so many runs at a time on this machine (default: 1)
  --submit COMMAND  hand each run to a cluster instead, such as "sbatch --partition gpu", with recipes/slurm/run.sbatch
  --output DIR      where the runs go, one folder each, and table.md (default: runs/$recipe)
  --table           only the table of the runs that are finished
END
}

took() { # OPTION [VALUE]: what is not of the sweep is handed on
    case $1 in --runs | --seeds | --jobs | --submit | --output | --table | --dry-run) ;; *) passed+=("$@") ;; esac
}

sweep_run() { # HEADS KEY_DIM NAME SEED: one run, or what its place is taken by
    local name=$1-dk$2${3:+-$3}-s$4-u$updates folder command status=0
    folder=$sweep/$name
    command=("$root/recipes/$recipe/run.sh" --heads "$1" --key-dim "$2" ${3:+--with "$3"} --seed "$4" --output "$folder"
        "${passed[@]}")
    # shellcheck disable=SC2206  # a command with its options
    [ -z "$submit" ] || command=($submit "$root/recipes/slurm/run.sbatch" "$recipe" "${command[@]:1}")
    folders+=("$folder")
    [ -z "$table" ] || return 0
    if [ -f "$folder/.done/record" ]; then
        say "$name: done before"
    elif [ -n "$dry_run" ]; then
        printf '%q ' "${command[@]}" && echo
    elif [ -n "$submit" ]; then
        "${command[@]}" || die "$name could not be submitted"
    elif [ "$jobs" -eq 1 ]; then
        say "$name"
        "${command[@]}" &
        attend "$!" || status=$?
        case $status in
            0) ;;
            75) exit 75 ;;
            *) failed+=("$name") ;;
        esac
    else
        while [ "$(jobs -pr | wc -l)" -ge "$jobs" ]; do wait -n || true; done
        say "$name: started, see $folder/messages.txt"
        mkdir -p "$folder"
        # runs side by side need ports of their own
        env -u SLURM_JOB_ID "${command[@]}" >"$folder/messages.txt" 2>&1 </dev/null &
        started+=("$!") names+=("$name")
        # shellcheck disable=SC2064  # the processes of now
        trap "kill -TERM ${started[*]} 2>/dev/null; exit 75" INT TERM
    fi
}

sweep_table() { # of the records of the sweep, printed and kept as table.md, and of all their averages as averages.md
    local folder file records=() averages=() flags=()
    for folder in "${folders[@]}"; do
        if [ -f "$folder/record.json" ]; then records+=("$folder/record.json"); fi
        for file in "$folder"/record{,.u*[0-9],.epochs*[0-9]}.json; do [ ! -f "$file" ] || averages+=("$file"); done
    done
    [ ${#records[@]} -gt 0 ] || { say "no run is finished: no table" && return; }
    # the first run is what the others are compared with
    if [ "${records[0]}" = "${folders[0]}/record.json" ] && [ ${#records[@]} -gt 1 ]; then
        flags=(--baseline "$(setting name "${folders[0]}")")
    fi
    "$scripts/collab" table "${records[@]}" "${flags[@]}" --output "$sweep/table.md" || die "the table could not be made"
    cat "$sweep/table.md"
    [ ${#averages[@]} -gt ${#records[@]} ] || return 0
    "$scripts/collab" table "${averages[@]}" --group-by heads,key_dim,config.optimization.max_update,averaged \
        --output "$sweep/averages.md" || die "the table of all averages could not be made"
    echo && cat "$sweep/averages.md"
}

sweep() {
    local sweep run heads key_dim with number folders=() started=() names=() failed=()
    sweep=$(absolute "${output:-$root/runs/$recipe}")
    ! is_given runs || read -ra runs <<<"${runs[0]}" # the option is one word
    [ ${#runs[@]} -gt 0 ] || die "--runs must name at least one run"
    for run in "${runs[@]}"; do
        [[ $run =~ ^[a-z_]+:[0-9]+(:[a-z0-9_-]+)?$ ]] || die "--runs: expected HEADS:KEY_DIM[:NAME], got '$run'"
        IFS=: read -r heads key_dim with <<<"$run"
        need_number --runs "$key_dim"
        [ -z "$with" ] || [ -n "${with_flags[$with]:-}" ] || die "--runs: config.sh has no flags of the name '$with'"
    done
    [ -n "$seeds" ] || seeds=$seed
    for number in ${seeds//,/ }; do need_number --seeds "$number"; done
    passed=(--python "$python" "${passed[@]}" ${rest[0]+-- "${rest[@]}"})
    for number in ${seeds//,/ }; do
        for run in "${runs[@]}"; do
            IFS=: read -r heads key_dim with <<<"$run"
            sweep_run "$heads" "$key_dim" "$with" "$number"
        done
    done
    for number in "${!started[@]}"; do wait "${started[number]}" || failed+=("${names[number]}"); done
    if [ -n "$dry_run" ] || { [ -n "$submit" ] && [ -z "$table" ]; }; then return; fi
    sweep_table
    [ ${#failed[@]} -eq 0 ] || die "not finished: ${failed[*]}; the same command goes on from here"
}
