# shellcheck shell=bash disable=SC2034
# What recipes/demo shows of toy.yaml.
runs=(none:64 none:16 encoder_cross_decoder:16)
updates=1500
warmup=300
saves=20
