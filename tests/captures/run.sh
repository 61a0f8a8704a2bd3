#!/bin/bash
# Replays real captures with `--check`: fetched from packages, and recorded here.
#
#   tests/captures/run.sh [DIR]      DIR is target/captures unless given
#
# Nothing is installed; what is fetched stays in DIR. Recording needs root and is loud without.
# Fails if what comes out of a capture is not what went in, or if too few captures have TCP.
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=${1:-target/captures}
mkdir -p "$dir"

cargo build --release --bin vhost-user-gro
# netperf, tcpdump and ethtool come with the kit of the tests on guests.
qemu-tests/setup.sh target/qemu
tests/captures/fetch.sh "$dir"
if [ "$(id -u)" = 0 ]; then
    tests/captures/record.sh target/qemu/tools "$dir"
else
    echo "SKIPPED recordings: they need root, for network namespaces" >&2
fi
export LD_LIBRARY_PATH=$PWD/target/qemu/tools/usr/lib/x86_64-linux-gnu
tests/captures/check.sh target/release/vhost-user-gro target/qemu/tools/usr/bin/tcpdump "$dir" |
    tee "$dir/table.txt"
