#!/bin/sh
# Installs what building and testing need of the system and what is missing there: a C linker and a
# few tools that nearly every Debian has. As root only; others are told what to type.
set -eu

command -v cargo >/dev/null || { echo "needs Rust: see https://rustup.rs" >&2; exit 1; }

packages=
need() { command -v "$1" >/dev/null || packages="$packages $2"; }
need cc "gcc libc6-dev"
need ip iproute2
need xz xz-utils
need unshare util-linux
need mount mount
[ -n "$packages" ] || exit 0

if [ "$(id -u)" != 0 ]; then
    echo "missing:$packages; as root: apt-get install$packages" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# The lists may be older than the archive, or not there at all.
# shellcheck disable=SC2086 # one word a package
apt-get -qq update && apt-get -qq -y --no-install-recommends install $packages
