# shellcheck shell=bash disable=SC2034,SC2154  # a sourced file: the sourcing script and lib.sh assign what it uses
# A corpus of gzipped raw texts, English-German -> joint SentencePiece BPE -> fairseq data-bin. Sourced after lib.sh, not
# run. A script sets `corpus` (what it is called), `variable` (what names its folder), `origin` (where it is had without),
# `vocab_size`, and `url` where its files can be had one by one.

source=${!variable:-}
dict='' workers=1

splits() { # TEXT<tab>SPLIT of the manifest
    awk -F '\t' '!/^#/ { sub(/\.[^.]*\.gz$/, "", $1); print $1 "\t" $4 }' "$manifest" | uniq
}

usage() {
    cat <<END
usage: data_prep/$title.sh [options]

Check the gzipped raw files of $corpus, train a joint SentencePiece BPE model on the training text, encode all
splits and binarise them for fairseq: $(splits | awk -F '\t' '{ printf "%s%s (%s)", comma, $2, $1; comma = ", " }').

  --source DIR      directory with the *.gz files (default: \$$variable; $origin)
  --vocab-size N    SentencePiece pieces, both languages together (default: $vocab_size)
  --spm FILE        encode with this SentencePiece model instead of training one, for a translation model that was
                    trained with it
  --dict FILE       that translation model's joint dictionary (dict.*.txt of its data)
END
    common_usage "raw/ (the text of every split), sentencepiece.model,"
}

prepared_from() { # what determines the result
    if [ -z "$spm" ]; then echo "vocab_size $vocab_size"; else echo "spm $(sum_files "$spm" | cut -d ' ' -f 1)"; fi
    [ -z "$dict" ] || echo "dict $(sum_files "$dict" | cut -d ' ' -f 1)"
    grep -v '^#' "$manifest"
}

is_prepared() {
    prepared_from | cmp -s - "$1"
}

read_options "$@"
[ -z "$dict" ] || [ -n "$spm" ] || die "--dict needs the SentencePiece model that goes with it (--spm)"
for file in "$spm" "$dict"; do
    [ -z "$file" ] || [ -f "$file" ] || die "there is no file $file"
done
[ -z "$spm" ] || spm=$(absolute "$spm")
[ -z "$dict" ] || dict=$(absolute "$dict")
header=
open_output
[ -n "$source$url" ] || die "the corpus is not to be had as files: name a folder with --source or \$$variable ($origin)"
open_corpus "$source"
prepared_from >"$work/prepared.txt"

texts=() train='' valids='' tests=''
while IFS=$'\t' read -r base split; do
    texts+=("$base")
    case $split in
        train) train=pieces/$base ;;
        valid*) valids+=${valids:+,}pieces/$base ;;
        test*) tests+=${tests:+,}pieces/$base ;;
        *) die "$manifest: unknown split '$split' (train, valid, valid1, ..., test, test1, ...)" ;;
    esac
done < <(splits)
encode_pieces en de '' "${texts[@]}"
keep_output pieces --source-lang en --target-lang de --trainpref "$train" --validpref "$valids" --testpref "$tests" \
    ${dict:+--srcdict "$dict"}
