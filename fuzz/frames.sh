#!/bin/sh
# Makes frames.pcap, seeds of the fuzz targets, of what tests/captures/record.sh recorded.
#
#   fuzz/frames.sh TCPDUMP RECORDED
#
# The first short frames of each recording: handshakes, acknowledgements, requests, small writes.
set -eu
tcpdump=${1:?usage: frames.sh TCPDUMP RECORDED}
recorded=${2:?usage: frames.sh TCPDUMP RECORDED}
PCAP_HEADER=24

first=1
for capture in "$recorded"/*.pcap; do
    "$tcpdump" -Z root -r "$capture" -c 12 -w - 'less 300 and not port 12865' | tail -c "+$first"
    first=$((PCAP_HEADER + 1))
done >"$(dirname "$0")/frames.pcap"
