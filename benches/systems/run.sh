#!/usr/bin/env bash
# Runs each case on each allocator, one process after another, and prints a line for each.
#
#   benches/systems/run.sh [case ...]     sparse sizes shuffled peak fork trim; all of them by default
#   PEAK_SECONDS=570 benches/systems/run.sh peak   and looks again after so many seconds more
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-../../target}
case "$target" in /*) ;; *) target=$PWD/$target ;; esac
export CARGO_TARGET_DIR=$target/systems
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(sparse sizes shuffled peak fork trim)
allocators=(system mimalloc larder larder-memory larder-speed)
for allocator in "${allocators[@]}"; do
    cargo build --quiet --release --locked --features "$allocator"
    cp "$CARGO_TARGET_DIR/release/larder-systems" "$CARGO_TARGET_DIR/$allocator"
done
for case in "${cases[@]}"; do
    for allocator in "${allocators[@]}"; do
        printf '%-9s %-14s' "$case" "$allocator"
        "$CARGO_TARGET_DIR/$allocator" "$case"
    done
done
