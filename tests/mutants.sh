#!/bin/sh
# Takes each rule of engine and segmentation out in turn; every time a test must fail.
#
#   tests/mutants.sh [OPTION...]     options of cargo-mutants, as `--shard 0/8` or `-f src/gro/tcp.rs`
#
# What it runs is in .cargo/mutants.toml; all of it takes hours. Results are in target/mutants.out,
# survivors in its missed.txt. cargo-mutants is installed below target/ where it is not found.
set -eu
cd "$(dirname "$0")/.."

tools=$PWD/target/tools
PATH=$tools/bin:$PATH
command -v cargo-mutants >/dev/null ||
    cargo install --locked --root "$tools" --target-dir "$tools/build" cargo-mutants

exec cargo mutants --output target "$@"
