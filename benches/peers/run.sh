#!/bin/sh
# The engine and DPDK's librte_gro over the same frames, side by side: prints ns per frame, ratios,
# and which targets are met. main.rs says what is measured.
#
#   CPU=0 benches/peers/run.sh
#
# Needs Debian or a relative with a C compiler and pkg-config; setup.sh fetches the rest to
# target/peers. Both sides run on CPU, which should have nothing else to do.
set -eu
cd "$(dirname "$0")/../.."
CARGO=${CARGO:-cargo}
CPU=${CPU:-0}
dir=${CARGO_TARGET_DIR:-target}/peers

command -v taskset >/dev/null || { echo "peers: needs 'taskset' of util-linux" >&2; exit 1; }
benches/peers/setup.sh "$dir"
"$CARGO" bench --quiet --bench peers --no-run
taskset -c "$CPU" "$CARGO" bench --quiet --bench peers -- "$(cd "$dir" && pwd)"
