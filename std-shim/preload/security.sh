#!/usr/bin/env bash
# Counts which of mimalloc-bench's security cases are found, on liblarder.so as it is and hardened, and on the
# allocators that Debian's packages have put on the machine.
#
#   std-shim/preload/security.sh FOLDER [-v]    FOLDER is a checkout of mimalloc-bench; -v names what is not found
#
# A case counts as found if it does not say that it was not, within 10 seconds: it ended, or did no harm. One that
# says so and ends badly later counts as not found.
set -euo pipefail
sources=$(realpath "$1")/bench/security
verbose=${2:-}
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}/malloc
cargo build --quiet --release --manifest-path std-shim/preload/Cargo.toml --target-dir "$target"
larder=$(realpath "$target")/release/liblarder.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# As mimalloc-bench builds them.
options='-O3 -DNDEBUG -w -fno-inline -fno-builtin-inline -fno-inline-small-functions -fno-ipa-pure-const'
for source in "$sources"/*.c; do
    name=$(basename "$source" .c)
    for length in small:8 medium:4096 large:256*1024; do
        # shellcheck disable=SC2086
        cc $options "-DALLOCATION_SIZE=${length#*:}" "$source" -o "$work/${name}_${length%:*}"
    done
done
for source in "$sources"/*.cc; do
    c++ -O3 -DNDEBUG -w -std=c++17 -fsized-deallocation -DALLOCATION_SIZE=4096 "$source" \
        -o "$work/$(basename "$source" .cc)"
done

# The name, then variables that choose an allocator.
count() {
    local name=$1 found=0 all=0 missed=''
    shift
    for case in "$work"/*; do
        all=$((all + 1))
        # In a shell of its own, which says nothing of how the case ends.
        said=$(timeout 10 bash -c "env $* $case || true" 2>&1 | tr -d '\0') || true
        case $said in
            *NOT_CAUGHT*) missed+=" $(basename "$case")" ;;
            *) found=$((found + 1)) ;;
        esac
    done
    printf '%-10s %4d of %d\n' "$name" "$found" "$all"
    [ "$verbose" != -v ] || printf '%s\n' "$missed" | fold -s -w 110
}

libraries=/usr/lib/$(uname -m)-linux-gnu
count glibc
count larder "LD_PRELOAD=$larder"
count hardened "LD_PRELOAD=$larder LARDER_MODE=hardened"
for other in mimalloc.so.2 jemalloc.so.2 tcmalloc_minimal.so.4; do
    [ ! -e "$libraries/lib$other" ] || count "${other%%.*}" "LD_PRELOAD=$libraries/lib$other"
done
