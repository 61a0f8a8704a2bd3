#!/bin/sh
# Fetches what the guest tests, the demo and the experiments need, and builds the guest's image.
#
#   setup.sh DIR
#
# Everything comes from the distribution's packages and is unpacked below DIR;
# nothing is installed and no root is needed. Runs again only when this script
# has changed.
#
#   DIR/apt            private package lists and downloaded packages
#   DIR/tools          netperf, tcpdump and the like, for host and guest
#   DIR/dpdk           testpmd and DPDK's drivers
#   DIR/qemu/newest    QEMU of the backports, where there is one
#   DIR/qemu/release   QEMU of the release itself
#   DIR/image          vmlinuz, initrd and the list of versions
set -eu

dir=${1:?usage: setup.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
. "$here/../tests/packages.sh"

fail() { echo "setup: $*" >&2; exit 1; }
say() { echo "setup: $*" >&2; }

for tool in apt-get dpkg-deb xz ldd unshare flock; do
    command -v "$tool" >/dev/null || fail "needs '$tool'; this set-up is made for Debian"
done
[ "$(dpkg --print-architecture)" = amd64 ] || fail "only amd64 guests are known here"

exec 9>"$dir/lock"
flock 9
stamp=$(cat "$here/setup.sh" "$here/guest-init" "$here/../tests/packages.sh" | sha256sum)
if [ "$(cat "$dir/stamp" 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

packages_open "$dir" || fail "no package lists"
backports=$release-backports
say "package lists of $release and $backports"
if ! packages_list "deb $release main non-free" "deb $backports main" 2>/dev/null; then
    say "no $backports: only the release itself is used"
    backports=$release
    packages_list "deb $release main non-free" || fail "no package lists"
fi

# unpack TREE SUITE PACKAGE...: below DIR/TREE.
unpack() {
    tree=$dir/$1 suite=$2
    shift 2
    say "$(basename "$tree"): $*"
    packages_unpack "$tree" "$suite" "$@" || fail "cannot fetch $*"
}

# run TREE COMMAND...: a program out of a tree, with the tree's libraries.
run() {
    tree=$dir/$1 program=$2
    shift 2
    LD_LIBRARY_PATH=$(libraries "$tree") "$tree/$program" "$@"
}

unpack tools "$release" busybox-static cpio ethtool iperf3 iproute2 netperf passt socat strace tcpdump tcpreplay
# testpmd is linked to half of DPDK, but its package wants all of it, and what is needed to build on it.
packages_wanted='dpdk-dev|librte-.*[0-9]|lib[a-oq-z].*[0-9]|libpcap0.8|ibverbs-providers|zlib1g'
unpack dpdk "$release" dpdk-dev
unset packages_wanted
unpack qemu/release "$release" qemu-system-x86
if [ "$backports" != "$release" ]; then
    unpack qemu/newest "$backports" qemu-system-x86
else
    rm -rf "$dir/qemu/newest"
fi

kernel=$(apt -t "$backports" -s install linux-image-cloud-amd64 |
    sed -n 's/^Inst \(linux-image-[0-9][^ ]*\) (\([^ ]*\) .*/\1/p' | head -n 1)
[ -n "$kernel" ] || fail "no cloud kernel among the packages"
say "kernel: $kernel"
rm -rf "$dir/kernel" "$dir/image"
mkdir -p "$dir/kernel" "$dir/image"
(cd "$dir/apt/cache/archives" && packages_get -t "$backports" "$kernel") || fail "cannot fetch $kernel"
dpkg-deb -x "$dir/apt/cache/archives/$kernel"_*.deb "$dir/kernel"
cp "$dir"/kernel/boot/vmlinuz-* "$dir/image/vmlinuz"

# The guest's files: programs with their libraries, a few modules, and an init.
say "image"
root=$dir/kernel/root
mkdir -p "$root/bin" "$root/usr/bin" "$root/etc" "$root/modules" \
    "$root/proc" "$root/sys" "$root/dev" "$root/tmp" "$root/var/run" "$root/var/tmp"
cp "$dir/tools/bin/busybox" "$root/bin/"
for applet in $("$root/bin/busybox" --list); do
    [ -e "$root/bin/$applet" ] || ln -s busybox "$root/bin/$applet"
done
for program in usr/bin/netserver usr/bin/netperf usr/bin/iperf3 usr/bin/socat usr/bin/tcpdump \
    usr/bin/tcpreplay usr/sbin/ethtool sbin/ethtool; do
    [ -f "$dir/tools/$program" ] || continue
    rm -f "$root/bin/$(basename "$program")"
    cp -L "$dir/tools/$program" "$root/usr/bin/"
done
for program in "$root"/usr/bin/*; do
    LD_LIBRARY_PATH=$(libraries "$dir/tools") ldd "$program"
done | sed -n 's/^[^/]*\(\/[^ ]*\) (0x.*/\1/p' | sort -u | while read -r library; do
    case $library in
    */ld-linux*) target=$root/lib64 ;;
    *) target=$root/usr/lib/x86_64-linux-gnu ;;
    esac
    mkdir -p "$target"
    cp -L "$library" "$target/"
done
# module NAME: into the image, if this kernel has it as a module.
module() {
    file=$(find "$dir/kernel/lib/modules" "$dir/kernel/usr/lib/modules" -name "$1.ko*" 2>/dev/null | head -n 1)
    case $file in
    '') return 1 ;;
    *.xz) xz -dc "$file" >"$root/modules/$1.ko" ;;
    *) cp "$file" "$root/modules/$1.ko" ;;
    esac
}
# 'order' lists those of every guest as they have to be loaded, 'vlan' those for VLAN devices.
for module in failover net_failover dimlib virtio_net; do
    module "$module" && echo "$module" >>"$root/modules/order"
done
: >"$root/modules/vlan"
for module in llc stp garp mrp 8021q; do
    module "$module" && echo "$module" >>"$root/modules/vlan"
done
# For the experiments: the kernel's generator of frames.
module pktgen || say "no pktgen: experiments with small frames are left out"
echo 'root:x:0:0:root:/:/bin/sh' >"$root/etc/passwd"
echo 'tcpdump:x:100:100:tcpdump:/:/bin/sh' >>"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo '127.0.0.1 localhost' >"$root/etc/hosts"
install -m 755 "$here/guest-init" "$root/init"
# Not compressed: an emulated processor takes longer to unpack than QEMU to load it.
(cd "$root" && find . | run tools bin/cpio -o -H newc --quiet -R 0:0) >"$dir/image/initrd"

{
    echo "kernel $kernel $(dpkg-deb -f "$dir/apt/cache/archives/$kernel"_*.deb Version)"
    awk '/^(netperf|busybox-static|iperf3|ethtool) / { print $1, $1, $2 }' "$dir/tools/packages"
} >"$dir/image/versions"
rm -rf "$dir/kernel"
echo "$stamp" >"$dir/stamp"
say "ready: $(du -sh "$dir" | cut -f1) in $dir"
