# Sourced by tests/mutants.sh and tests/rules.sh: a copy of the tree that may be broken, in $tree.
# Sources may be edited meanwhile, and what was built stays for the next time. One run at a time.

tree=$PWD/target/mutants/tree
export CARGO_TARGET_DIR="$PWD/target/mutants/build"
rm -rf "$tree"
mkdir -p "$tree"
# With new times of modification, so that nothing built from a broken tree is taken for fresh.
git ls-files -z -co --exclude-standard | tar -c --null -T - | tar -xm -C "$tree"
