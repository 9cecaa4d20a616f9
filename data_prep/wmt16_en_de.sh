#!/usr/bin/env bash
# WMT14 English-German as preprocessed by Google (the data of the paper) for fairseq. See --help.
exec bash "$(dirname -- "${BASH_SOURCE[0]}")/../recipes/start.sh" data_prep wmt16_en_de "$@"
