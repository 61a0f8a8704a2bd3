#!/bin/bash
# Records traffic between two network namespaces, into DIR/recorded. Needs root.
#
#   record.sh TOOLS DIR      TOOLS is the tree with netperf, tcpdump, ethtool and tcprewrite
#
# The receiving end of a pair of veth is recorded, with offloads off, so that the frames are those
# that a card would give. Everything happens in namespaces that end with this script.
set -euo pipefail

tools=$(cd "${1:?usage: record.sh TOOLS DIR}" && pwd)
mkdir -p "${2:?usage: record.sh TOOLS DIR}/recorded"
dir=$(cd "$2/recorded" && pwd)
if [ "${IN_NAMESPACES:-}" != yes ]; then
    export IN_NAMESPACES=yes
    exec unshare --net --mount --pid --fork --kill-child --mount-proc "$0" "$@"
fi
export PATH=$PATH:$tools/usr/bin:$tools/usr/sbin:$tools/sbin
export LD_LIBRARY_PATH=$tools/usr/lib/x86_64-linux-gnu:$tools/lib/x86_64-linux-gnu

# What one flow sends at most, and how many frames are kept of a recording.
BYTES=12000000
FRAMES=20000

peer() { ip netns exec peer "$@"; }
quietly() { "$@" >>"$dir/log" 2>&1; }

# record NAME COMMAND...: what `far` receives while the command runs.
record() {
    local name=$1
    shift
    coproc dump {
        exec ip netns exec peer tcpdump -i far -Q in -n -Z root -B 65536 -c $FRAMES \
            --time-stamp-precision="$precision" -w "$dir/$name.pcap" 2>&1
    }
    local pid=$dump_PID out=${dump[0]} line
    # Its first line says that it listens.
    read -r line <&"$out"
    [[ $line == *"listening on"* ]] || { echo "recording $name: $line" >&2; exit 1; }
    quietly "$@" || { echo "recording $name: $* failed" >&2; tail "$dir/log" >&2; exit 1; }
    kill "$pid" 2>/dev/null || true
    wait "$pid" || true
    echo "recorded $name" >&2
}

# stream TEST TO [OPTION...]: one netperf, by amount, not by time.
stream() {
    local test=$1 to=$2
    shift 2
    netperf -t "$test" -H "$to" -l "-$BYTES" -- "$@"
}

# streams N TO [OPTION...]: that many at once.
streams() {
    local n=$1 pids=() pid
    shift
    for ((; n > 0; n--)); do
        stream TCP_STREAM "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid"; done
}

# requests TEST TO [OPTION...]: small ones, one after the other, for a second.
requests() {
    local test=$1 to=$2
    shift 2
    netperf -t "$test" -H "$to" -l 1 -- "$@"
}

# mixed: bulk over both versions of IP, requests and datagrams, all at once.
mixed() {
    local pids=() pid
    stream TCP_STREAM 10.9.0.2 & pids+=($!)
    stream TCP_STREAM fd09:0::2 & pids+=($!)
    requests TCP_RR 10.9.0.2 & pids+=($!)
    requests UDP_RR fd09:0::2 -r 1000 & pids+=($!)
    for pid in "${pids[@]}"; do wait "$pid"; done
}

# link NET NEAR FAR: gives both ends of a link addresses, near .1 and far .2.
link() {
    ip addr add "10.9.$1.1/24" dev "$2"
    ip addr add "fd09:$1::1/64" dev "$2" nodad
    ip link set "$2" up
    peer ip addr add "10.9.$1.2/24" dev "$3"
    peer ip addr add "fd09:$1::2/64" dev "$3" nodad
    peer ip link set "$3" up
}

# offloads OPTION...: of both ends of the wire.
offloads() { quietly ethtool -K near "$@"; quietly peer ethtool -K far "$@"; }

mount -t tmpfs tmpfs /run
mkdir /run/netns
: >"$dir/log"
ip netns add peer
ip link add near type veth peer name far netns peer
ip link set lo up
peer ip link set lo up
link 0 near far
offloads tx off gso off gro off
quietly peer netserver

precision=micro
record tcp4 stream TCP_STREAM 10.9.0.2
record tcp4-8-flows streams 8 10.9.0.2
record tcp4-small-writes stream TCP_STREAM 10.9.0.2 -m 200 -D
record tcp4-acks requests TCP_MAERTS 10.9.0.2
record tcp4-requests requests TCP_RR 10.9.0.2
record tcp4-connections requests TCP_CRR 10.9.0.2 -r 20000,100
record udp4 requests UDP_STREAM 10.9.0.2 -m 1400

precision=nano
record tcp6 stream TCP_STREAM fd09:0::2
record tcp6-8-flows streams 8 fd09:0::2
record udp6 requests UDP_STREAM fd09:0::2 -m 1200
record mixed mixed

sysctl -qw net.ipv4.tcp_timestamps=0
record tcp4-no-timestamps stream TCP_STREAM 10.9.0.2
sysctl -qw net.ipv4.tcp_timestamps=1 net.ipv4.tcp_ecn=1
record tcp4-ecn stream TCP_STREAM 10.9.0.2
sysctl -qw net.ipv4.tcp_ecn=2

# A queue that overflows: frames are lost and sent again.
tc qdisc add dev near root tbf rate 100mbit burst 10kb limit 30kb
record tcp4-loss stream TCP_STREAM 10.9.0.2
record tcp4-4-flows-loss streams 4 10.9.0.2
record tcp6-loss stream TCP_STREAM fd09:0::2
tc qdisc del dev near root

ip link set near mtu 9000
peer ip link set far mtu 9000
record tcp4-jumbo stream TCP_STREAM 10.9.0.2
ip link set near mtu 1500
peer ip link set far mtu 1500

ip link add inner type vxlan id 7 dstport 4789 local 10.9.0.1 remote 10.9.0.2
peer ip link add inner type vxlan id 7 dstport 4789 local 10.9.0.2 remote 10.9.0.1
link 7 inner inner
offloads tx off
record tcp4-in-vxlan stream TCP_STREAM 10.9.7.2

# Where the kernel has no VLAN interfaces, tags are put on what was recorded without.
if quietly ip link add link near name tagged type vlan id 5; then
    peer ip link add link far name tagged type vlan id 5
    link 5 tagged tagged
    record tcp4-vlan stream TCP_STREAM 10.9.5.2
    record tcp6-vlan streams 2 fd09:5::2
else
    for name in tcp4 tcp6-8-flows; do
        quietly tcprewrite --enet-vlan=add --enet-vlan-tag=5 --enet-vlan-cfi=0 --enet-vlan-pri=3 \
            --infile="$dir/$name.pcap" --outfile="$dir/$name-vlan.pcap"
        echo "tagged $name, as this kernel has no VLAN interfaces" >&2
    done
fi

# What a host captures where it sends: checksums left to the card, then packets before segmentation.
offloads tx on gso off tso off
record tcp4-partial-checksums stream TCP_STREAM 10.9.0.2
offloads gso on tso on
record tcp4-not-segmented stream TCP_STREAM 10.9.0.2
record tcp6-not-segmented stream TCP_STREAM fd09:0::2
