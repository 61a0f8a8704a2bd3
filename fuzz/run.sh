#!/bin/sh
# Fuzzes each target for a number of seconds, one after the other, and prints executions per second.
#
#   fuzz/run.sh [SECONDS [TARGET...]]
#
# cargo-fuzz asks the compiler for sanitizers and coverage, which a stable one has but gives out only
# with RUSTC_BOOTSTRAP=1; no nightly toolchain is needed. What has no unsafe code runs without a
# sanitizer, several times as fast; SANITIZER=address is for all. cargo-fuzz is installed below target/ where it is not found. What is found of interest
# stays in fuzz/corpus, what breaks a target in fuzz/artifacts; put that into fuzz/regressions with
# its fix.
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- layout engine tx_frame chain

tools=$PWD/target/tools
PATH=$tools/bin:$PATH
command -v cargo-fuzz >/dev/null ||
    cargo install --locked --root "$tools" --target-dir "$tools/build" cargo-fuzz

# Guest memory is only reached from the transmit queue and the chains.
sanitizer() {
    case $1 in
    layout | engine) echo "${SANITIZER:-none}" ;;
    *) echo "${SANITIZER:-address}" ;;
    esac
}

# The one set of real captures that cargo itself fetches.
parser=$(cargo metadata --format-version 1 --manifest-path fuzz/Cargo.toml |
    grep -o '"manifest_path":"[^"]*/pcap-parser-[0-9][^"/]*/Cargo.toml"' | cut -d '"' -f 4)

export RUSTC_BOOTSTRAP=1
for body; do
    kind=$(sanitizer "$body")
    cargo fuzz build --sanitizer "$kind" --fuzz-dir fuzz --target-dir "target/fuzz/$kind" "$body"
done
status=0
for body; do
    corpus=fuzz/corpus/$body
    artifacts=fuzz/artifacts/$body/
    log=target/fuzz/$body.log
    cargo run --quiet --manifest-path fuzz/Cargo.toml --target-dir target \
        --example seeds -- "$body" "$corpus" "${parser%/*}"/assets/*.pcap*
    mkdir -p "$artifacts" "fuzz/regressions/$body"
    echo "fuzzing $body for $seconds s, sanitizer: $(sanitizer "$body")"
    if "target/fuzz/$(sanitizer "$body")/x86_64-unknown-linux-gnu/release/$body" "$corpus" "fuzz/regressions/$body" \
        -artifact_prefix="$artifacts" -max_total_time="$seconds" -max_len=4096 \
        -timeout=20 -print_final_stats=1 >"$log" 2>&1; then
        sed -n 's/^stat::number_of_executed_units: */  executions: /p
            s/^stat::average_exec_per_sec: */  executions per second: /p' "$log"
        grep -o 'cov: [0-9]* ft: [0-9]* corp: [0-9]*' "$log" | tail -n 1 | sed 's/^/  /'
    else
        status=1
        echo "  FOUND something in $body; the end of $log:"
        tail -n 40 "$log"
    fi
done
exit $status
