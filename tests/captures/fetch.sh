#!/bin/bash
# Fetches packages that hold captures, and keeps the captures below DIR/fetched/PACKAGE.
#
#   fetch.sh DIR
#
# What is there already is not fetched again. A package that cannot be had is named and left out.
set -euo pipefail

here=$PWD
mkdir -p "${1:?usage: fetch.sh DIR}/fetched"
dir=$(cd "$1" && pwd)
. tests/packages.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

debian=(golang-github-gopacket-gopacket-dev golang-github-google-gopacket-dev python3-dpkt pcapfix)
debian_sources=(tcpdump wireshark libpcap)
pypi=(pypacker==5.4 python-pcapng==2.1.1)
crates=(pcap-parser)

# Names that captures have; some packages compress them.
is_capture=(-name '*.pcap' -o -name '*.pcapng' -o -name '*.cap' -o -name '*.ntar'
    -o -name '*.pcap.gz' -o -name '*.pcapng.gz' -o -name '*.cap.gz')

# keep PACKAGE FOLDER: what is a capture in FOLDER, not compressed, below the name of the package.
keep() {
    local kept=$dir/fetched/$1
    (cd "$2" && find . -type f \( "${is_capture[@]}" \) -exec cp --parents -t "$work/kept" {} +)
    find "$work/kept" -name '*.gz' -exec gzip -df {} +
    mv "$work/kept" "$kept"
    echo "fetched $1: $(find "$kept" -type f | wc -l) captures" >&2
}

# fetch PACKAGE HOW: calls HOW PACKAGE FOLDER, which unpacks the package, unless it was kept before.
fetch() {
    [ ! -d "$dir/fetched/$1" ] || return 0
    rm -rf "${work:?}"/*
    mkdir "$work/got" "$work/unpacked" "$work/kept"
    if (cd "$work/got" && "$2" "$1" "$work/unpacked") >"$work/log" 2>&1; then
        keep "$1" "$work/unpacked"
    else
        echo "NOT FETCHED $1: $(tail -n 1 "$work/log")" >&2
    fi
}

from_debian() {
    apt download "$1" && dpkg-deb -x "$1"_*.deb "$2"
}

# Of some packages everything else is a hundred times as much.
unpack() {
    tar -C "$2" -xf "$1" --wildcards '*.pcap' '*.pcapng' '*.cap' '*.ntar' '*.gz' || true
}

from_debian_source() {
    apt source --download-only "$1" && unpack "$1"_*.orig.tar.*[z2] "$2"
}

from_pypi() {
    python3 -m pip download --no-deps --no-binary :all: "$1" && unpack ./*.tar.* "$2"
}

# It is a dependency, so cargo has it unpacked already.
from_crates() {
    local manifest
    manifest=$(cd "$here" && cargo metadata --format-version 1 |
        grep -o "\"manifest_path\":\"[^\"]*/$1-[0-9][^\"/]*/Cargo.toml\"" | cut -d'"' -f4)
    cp -r "$(dirname "$manifest")/." "$2"
}

for package in "${debian[@]}" "${debian_sources[@]}"; do
    [ -d "$dir/fetched/$package" ] && continue
    # With sources among them: the system's own lists seldom have any.
    packages_open "$dir" && packages_list "deb $release main" "deb-src $release main" || true
    break
done
for package in "${debian[@]}"; do fetch "$package" from_debian; done
for package in "${debian_sources[@]}"; do fetch "$package" from_debian_source; done
for package in "${pypi[@]}"; do fetch "$package" from_pypi; done
for package in "${crates[@]}"; do fetch "$package" from_crates; done
