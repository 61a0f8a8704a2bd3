#!/bin/bash
# Replays all captures below DIR with `--check` and prints a table.
#
#   check.sh PROGRAM TCPDUMP DIR
#
# Each is replayed twice: with the defaults, which only merge what arrives within the flush timeout
# of 20 us, and patiently, for a guest that takes merged datagrams as well, which merges what can be.
# Fails if a result is not what went in, if tcpdump does not read as many packets in it as the program
# says, if the program ends in any other way than it documents, or if fewer than 20 captures with TCP
# were checked whole.
set -uo pipefail

usage="usage: check.sh PROGRAM TCPDUMP DIR"
program=${1:?$usage}
tcpdump=${2:?$usage}
dir=${3:?$usage}
WANTED=20
# Captures with fewer TCP frames are summed up by package.
MIN_TCP=20
patient=(--guest-types=tso4,tso6,uso4,uso6 --gro-flush-timeout-ns=1000000000 --wakeup-ns=1000000)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# replay CAPTURE [OPTION...]: prints a line "verdict|frames|of TCP|packets|ratio|why".
replay() {
    local capture=$1 status=0
    shift
    timeout 120 "$program" replay --check --top=65536 "$@" "$capture" "$work/out" \
        >"$work/summary" 2>"$work/errors" || status=$?
    local read=0
    [ ! -s "$work/summary" ] || read=$("$tcpdump" -Z root --count -r "$work/out" 2>/dev/null | awk '{ print $1 }')
    grep '^note' "$work/summary" >>"$work/notes"
    awk -v status="$status" -v read="$read" -v errors="$(tr '\n' ' ' <"$work/errors")" '
        $1 == "in" { frames = $2 }
        $1 == "out" { packets = $2 }
        $1 == "merge" { ratio = $3 }
        $1 == "checked" { checked = 1 }
        $5 == "tcp" { tcp += $1 }
        END {
            why = errors
            sub(".*(not a capture that can be replayed|replayed only up to where it is damaged):? *", "", why)
            if (status == 0 && checked)
                verdict = "right"
            else if (status == 1 && why != errors)
                verdict = frames > 0 ? "damaged" : "refused"
            else {
                verdict = "WRONG"
                why = "status " status ": " errors
            }
            if (read + 0 != packets + 0) {
                verdict = "WRONG"
                why = "tcpdump reads " read + 0 " packets in the result"
            }
            print verdict "|" frames + 0 "|" tcp + 0 "|" packets + 0 "|" ratio "|" why
        }' "$work/summary"
}

# Lines "package|capture|verdict|frames|of TCP|packets|ratio|patient ratio|why" of all captures. The
# patient replay takes its verdict along if the two differ.
while IFS= read -r capture; do
    case $capture in
    */recorded/*) package=recorded ;;
    *) package=${capture#*/fetched/} package=${package%%/*} ;;
    esac
    IFS='|' read -r verdict frames tcp packets ratio why < <(replay "$capture")
    IFS='|' read -r verdict2 _ _ _ ratio2 why2 < <(replay "$capture" "${patient[@]}")
    if [ "$verdict2" != "$verdict" ]; then
        verdict=WRONG why="$verdict, patiently $verdict2: $why2"
    fi
    echo "$package|$(basename "$capture")|$verdict|$frames|$tcp|$packets|$ratio|$ratio2|$why"
done < <(find "$dir/recorded" "$dir/fetched" -type f -name '*[.]*' 2>/dev/null | sort) >"$work/all"

awk -F'|' -v wanted="$WANTED" -v min_tcp="$MIN_TCP" '
    function row(name, a, b, c, d, e, f) {
        printf "%-44s %8s %8s %8s %7s %7s  %s\n", name, a, b, c, d, e, f
    }
    BEGIN { row("capture with TCP", "frames", "of TCP", "packets", "ratio", "patient", "check") }
    {
        if (!($1 in captures)) order[++packages] = $1
        captures[$1]++
        frames[$1] += $4
        verdicts[$1, $3]++
    }
    $3 == "WRONG" { wrong[++wrongs] = $1 "/" $2 ": " $9 }
    $3 == "right" && $5 >= min_tcp { listed++; row($1 "/" $2, $4, $5, $6, $7, $8, "right") }
    $3 == "damaged" { damaged[++damages] = $1 "/" $2 ": right for " $4 " frames, then: " $9 }
    $3 == "refused" {
        reason = $9
        gsub(/[0-9]+/, "N", reason)
        if (!(reason in reasons)) example[reason] = $1 "/" $2 ": " $9
        reasons[reason]++
    }
    END {
        printf "\n%-44s %8s %8s %8s %7s %7s\n", "all captures of", "captures", "frames", "right", "damaged", "refused"
        for (i = 1; i <= packages; i++) {
            p = order[i]
            printf "%-44s %8d %8d %8d %7d %7d\n", p, captures[p], frames[p], verdicts[p, "right"],
                verdicts[p, "damaged"], verdicts[p, "refused"]
        }
        print "\nrefused, an example of each kind:"
        for (reason in reasons) printf "%5d  %s\n", reasons[reason], example[reason]
        print "\ndamaged:"
        for (i = 1; i <= damages; i++) print "       " damaged[i]
        for (i = 1; i <= wrongs; i++) print "WRONG  " wrong[i]
        if (listed < wanted) print "FAILED: only " listed + 0 " captures with TCP, not " wanted
        exit wrongs > 0 || listed < wanted
    }' "$work/all"
status=$?

printf '\nnotes of both replays of all captures, added up:\n'
awk '{ count = $2; $1 = $2 = ""; notes[$0] += count }
    END { for (note in notes) printf "%9d %s\n", notes[note], note }' "$work/notes"
exit $status
