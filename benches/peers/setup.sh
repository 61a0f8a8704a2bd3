#!/bin/sh
# Fetches the distribution's DPDK development package and builds librte_gro.c against it.
#
#   setup.sh DIR
#
# Needs Debian or a relative, a C compiler and pkg-config; no root, nothing is installed. Runs again
# only when this script or the program has changed.
#
#   DIR/apt            private package lists and downloaded packages
#   DIR/dpdk           the packages, unpacked
#   DIR/librte_gro     the program
#   DIR/version        version of DPDK
set -eu

dir=${1:?usage: setup.sh DIR}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
. "$here/../../tests/packages.sh"

fail() { echo "peers: $*" >&2; exit 1; }
say() { echo "peers: $*" >&2; }

for tool in apt-get dpkg-deb cc pkg-config; do
    command -v "$tool" >/dev/null || fail "needs '$tool'"
done

stamp=$(cat "$here/setup.sh" "$here/librte_gro.c" "$here/../../tests/packages.sh" | sha256sum)
[ "$(cat "$dir/stamp" 2>/dev/null)" != "$stamp" ] || exit 0

# The development package has static libraries, so its many dependencies are not needed, but for
# what DPDK's core itself calls.
wanted="libdpdk-dev libbsd-dev libbsd0 libmd0 libnuma1"
if [ ! -e "$dir/version" ]; then
    say "fetching $wanted"
    packages_open "$dir" && packages_list "deb $release main" || fail "no package lists"
    packages_wanted=$(echo "$wanted" | tr ' ' '|')
    # shellcheck disable=SC2086 # one word a package
    packages_unpack "$dir/dpdk" "$release" $wanted || fail "cannot fetch $wanted"
fi

pc=$(find "$dir/dpdk" -name libdpdk-libs.pc)
[ -n "$pc" ] || fail "no libdpdk-libs.pc among the packages"
export PKG_CONFIG_LIBDIR="${pc%/*}" PKG_CONFIG_SYSROOT_DIR="$dir/dpdk"
lib=${pc%/pkgconfig/*}
multiarch=${lib##*/}

say "building librte_gro"
# The mempool's driver is found by a constructor, which only --whole-archive keeps.
# shellcheck disable=SC2046 # one word a flag
cc -O3 -Wall -Wextra -o "$dir/librte_gro" \
    -I"$dir/dpdk/usr/include" $(pkg-config --cflags libdpdk-libs) "$here/librte_gro.c" \
    -L"$lib" -L"$dir/dpdk/lib/$multiarch" \
    -Wl,--whole-archive -l:librte_mempool_ring.a -Wl,--no-whole-archive \
    -l:librte_gro.a -l:librte_net.a -l:librte_mbuf.a -l:librte_mempool.a -l:librte_ring.a \
    -l:librte_eal.a -l:librte_telemetry.a -l:librte_kvargs.a \
    -l:libnuma.so.1 -l:libbsd.so.0 -lm -ldl -pthread \
    -Wl,-rpath,"$lib" -Wl,-rpath,"$dir/dpdk/lib/$multiarch" -Wl,-rpath-link,"$lib" ||
    fail "cannot build librte_gro.c"
pkg-config --modversion libdpdk-libs >"$dir/version"
echo "$stamp" >"$dir/stamp"
