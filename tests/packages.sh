# Packages of the distribution, unpacked and not installed; to be sourced. No root is needed, and
# package lists, cache and status are ours alone, so the answers do not depend on what the system
# has installed or when it last looked.
#
#   packages_open DIR                    sets `release` and `archive`, the system's own
#   packages_list SOURCE...              fetches lists, such as those of "deb $release main"
#   packages_get PACKAGE...              downloads into the current folder
#   packages_unpack TREE SUITE PACKAGE...   and all they depend on, below TREE; $packages_wanted
#                                        narrows that: a pattern for all of a package's name
#   apt WORD...                          apt-get on these lists
#   libraries TREE                       the folders in which a tree's programs find their libraries
#
# All of them fail with a word on standard error, and leave DIR/apt/log.

packages_open() {
    packages=$1/apt
    mkdir -p "$packages/lists/partial" "$packages/cache/archives/partial"
    packages=$(cd "$packages" && pwd)
    # shellcheck source=/dev/null
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    archive=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v r="$release" '($1 == r || $1 == "stable") && $2 == "main" { print $3; exit }')
    [ -n "$archive" ] || { echo "no source of '$release main' in the system's apt sources" >&2; return 1; }
    : >"$packages/status"
    cat >"$packages/apt.conf" <<CONF
Dir::Etc::sourcelist "$packages/sources.list";
Dir::Etc::sourceparts "-";
Dir::State "$packages";
Dir::State::lists "$packages/lists";
Dir::State::status "$packages/status";
Dir::Cache "$packages/cache";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Debug::NoLocking "true";
CONF
}

# A caller's lock is on descriptor 9.
apt() { APT_CONFIG=$packages/apt.conf apt-get -q -y "$@" 9>&-; }

# The same, heard only when it fails.
packages_quietly() {
    "$@" >"$packages/log" 2>&1 || { cat "$packages/log" >&2; return 1; }
}

packages_list() {
    printf '%s\n' "$@" | sed "s| | $archive |" >"$packages/sources.list"
    packages_quietly apt --error-on=any update
}

packages_get() { packages_quietly apt download "$@"; }

# The C library is left out: it must be the one of the system's loader.
packages_unpack() {
    packages_tree=$1 packages_suite=$2
    shift 2
    rm -rf "$packages_tree"
    mkdir -p "$packages_tree"
    packages_quietly apt -t "$packages_suite" -s install "$@" || return
    sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*\[\([a-z0-9]*\)\]).*/\1 \2 \3/p' "$packages/log" |
        grep -Ex "(${packages_wanted:-.*}) .*" | grep -v '^libc6 ' >"$packages_tree/packages"
    # shellcheck disable=SC2046 # one word a package
    (cd "$packages/cache/archives" &&
        packages_get $(sed 's/\([^ ]*\) \([^ ]*\) .*/\1=\2/' "$packages_tree/packages")) || return
    while read -r name version arch; do
        dpkg-deb -x "$packages/cache/archives/${name}_$(echo "$version" | sed 's/:/%3a/')_$arch.deb" \
            "$packages_tree" || return
    done <"$packages_tree/packages"
}

libraries() { echo "$1/usr/lib/x86_64-linux-gnu:$1/lib/x86_64-linux-gnu"; }
