#!/bin/sh
# Takes each rule of sections 4, 5 and 11 of docs/gro-rules.md out of the code, as tests/rules.txt says,
# and shows a test that fails for it. Complains if a rule is not listed, a line is no longer there, the
# result does not compile, or no test fails.
#
#   tests/rules.sh [PATTERN]     only entries that match, as `TCP-12` or `src/gro/udp.rs`
#
# All of it takes some minutes. The list is checked for completeness in any case.
set -eu
cd "$(dirname "$0")/.."

pattern=${1-.}
list=$PWD/tests/rules.txt
. tests/mutant-tree.sh
cd "$tree"
output=$tree/../output
bad=0

complain() {
    printf '%s\n' "$*"
    bad=$((bad + 1))
}

# Rules that no entry names.
for rule in $(sed -n -e '/^## 4\. /,/^## 6\. /p' -e '/^## 11\. /,/^## 12\. /p' docs/gro-rules.md | sed -nE 's/^(\| |- \*\*)([A-Z0-9]+-[0-9]+).*/\2/p'); do
    grep -qE "^[a-z].* $rule([ :]|\$)" "$list" || complain "$rule: not listed"
done

# Builds and runs some tests. 2: they do not compile. 124: they do not end.
run_tests() {
    cargo test --quiet --profile mutants --no-run "$@" >"$output" 2>&1 || return 2
    timeout 90 cargo test --quiet --profile mutants "$@" >"$output" 2>&1
}

# Unit tests build fastest and notice nearly everything; the worker needs the whole daemon.
try_all() {
    case $file in
    # A rule of sending has its tests there; others would wait long for what does not come.
    src/worker/transmit.rs | src/worker/sender.rs | src/worker/finish.rs)
        run_tests --test worker -- bulk limit finish
        ;;
    src/worker/*) run_tests --test worker ;;
    src/device/* | src/uplink/*) run_tests --lib ;;
    *)
        (export PROPTEST_CASES=16 && run_tests --no-default-features --lib) || return
        run_tests --no-default-features --lib --test gro_cases --test field_faults --test properties
        ;;
    esac
}

take_out() {
    cp "$file" "$tree/../whole"
    if ! OLD=$old NEW=$new awk '
        { text = $0; sub(/^[ \t]+/, "", text) }
        text == ENVIRON["OLD"] { found++; print ENVIRON["NEW"]; next }
        { print }
        END { exit found != 1 }
    ' "$tree/../whole" >"$file"; then
        complain "$entry: its line is not there exactly once"
    else
        status=0
        try_all || status=$?
        case $status in
        0) complain "$entry: no test fails" ;;
        2) complain "$entry: does not compile" ;;
        124) printf '%s: the tests do not end\n' "$entry" ;;
        *) printf '%s: %s\n' "$entry" "$(sed -n 's/^---- \(.*\) stdout ----$/\1/p' "$output" | head -n 1)" ;;
        esac
    fi
    cat "$tree/../whole" >"$file"
}

# A test that fails in any case would be taken for one that notices.
for file in src/gro/mod.rs src/worker/receive.rs src/device/ring.rs; do
    try_all || { echo "the tests fail before anything is taken out:"; tail -n 40 "$output"; exit 1; }
done

# An entry ends where the next begins.
entry='' old='' new=''
finish() {
    if [ -n "$new" ] && printf '%s' "$entry" | grep -qE -e "$pattern"; then
        file=${entry%% *}
        take_out
    fi
    old='' new=''
}

while IFS= read -r line; do
    case $line in
    '- '*) old=${line#- } ;;
    '+ '*) new=$new${new:+
}${line#+ } ;;
    src/*) finish; entry=$line ;;
    esac
done <"$list"
finish

[ "$bad" -eq 0 ] || { echo "$bad complaints"; exit 1; }
