#!/bin/sh
# Takes each rule of engine and segmentation out in turn; every time a test must fail.
#
#   tests/mutants.sh [OPTION...]     options of cargo-mutants, as `--shard 0/8` or `-F src/gro/tcp.rs`
#
# What it breaks is in .cargo/mutants.toml. A mutant costs two seconds of one core: the unit tests go
# first, as they build fastest and kill nearly all; the others then try what is left. Results are in
# target/mutants.out, survivors in its missed.txt. It works on a copy of the tree, so sources may be
# edited meanwhile. cargo-mutants is installed below target/ where it is not found.
set -eu
cd "$(dirname "$0")/.."

tools=$PWD/target/tools
PATH=$tools/bin:$PATH
command -v cargo-mutants >/dev/null ||
    cargo install --locked --root "$tools" --target-dir "$tools/build" cargo-mutants

. tests/mutant-tree.sh

mutate() {
    # 2 and 3: there are survivors, tests did not end.
    cargo mutants --dir "$tree" --in-place --output target --no-shuffle --cargo-arg=--lib "$@" ||
        case $? in 2 | 3) ;; *) exit 1 ;; esac
}
(export PROPTEST_CASES=16 && mutate "$@")
mutate --iterate --cargo-arg=--test=gro_cases --cargo-arg=--test=field_faults \
    --cargo-arg=--test=properties --cargo-arg=--test=steady_state "$@"
[ ! -s target/mutants.out/missed.txt ]
