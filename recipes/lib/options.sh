# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: the sourcing script assigns and uses what is here
# What every script of recipes and data_prep begins with: messages and options. Sourced. A script sets `root`, and has a
# function `usage`, whose help is also what `read_options` goes by: a line that begins with two blanks and an option
# declares it. `--key-dim N` sets `key_dim` to a whole number from 1, `--node-rank R` one from 0, any option with
# SPLIT=FILE adds to `split_files`, any other word in capitals takes any text, and `--dry-run` without a word sets
# `dry_run` to yes.

script=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
script=${script#"$root/"}

die() {
    echo "$script: error: $*" >&2
    exit 1
}

say() {
    echo "$title: $*" >&2
}

need_number() { # OPTION VALUE [LEAST]: LEAST is 1 unless given
    case $2 in '' | *[!0-9]*) die "$1 must be a whole number, got '$2'" ;; esac
    [ "$2" -ge "${3:-1}" ] || die "$1 must be at least ${3:-1}, got $2"
}

usable_cores() { # prints how many CPU threads may be used: OMP_NUM_THREADS, else the cores of this job or machine
    "$python" -c 'from fairseq_modern import processor; print(processor.usable_cores())' || die "'$python' has no fairseq_modern"
}

absolute() { # the absolute name of a path whose parent directory may not exist yet
    case $1 in /*) echo "${1%/}" ;; *) echo "$PWD/${1%/}" ;; esac
}

read_options() { # ARGUMENTS: sets the variables of the options, `given` (their names), and `rest`: what follows --
    # no name of an option begins with _
    local _help _word _name _pattern _end=$'\n'
    _help=$(usage)$_end
    given=' ' rest=() split_files=()
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) printf %s "$_help" && exit 0 ;;
            --) rest=("${@:2}") && return ;;
        esac
        _pattern="$_end  $1( ([A-Z\"][^ $_end]*))?[ $_end]"
        [[ $1 =~ ^--[a-z-]+$ && $_help =~ $_pattern ]] || die "unknown argument '$1' (see --help)"
        _word=${BASH_REMATCH[2]} _name=${1#--}
        _name=${_name//-/_}
        given="$given$_name "
        if [ -z "$_word" ]; then
            printf -v "$_name" yes
            took "$1" && shift && continue
        fi
        [ $# -ge 2 ] || die "$1 needs a value (see --help)"
        case $_word in
            N) need_number "$1" "$2" ;;
            R) need_number "$1" "$2" 0 ;;
            SPLIT=FILE)
                [[ $2 = ?*=* && -f ${2#*=} ]] || die "$1 must be SPLIT=FILE, got '$2'"
                split_files+=("$1" "${2%%=*}=$(absolute "${2#*=}")")
                ;;
        esac
        printf -v "$_name" %s "$2"
        took "$1" "$2" && shift 2
    done
}

took() { # OPTION [VALUE]: called for each option that was read; a script that hands options on has a function of its own
    true
}

is_given() { # NAME, such as key_dim: whether that option was among those that were read
    [[ $given = *" $1 "* ]]
}
