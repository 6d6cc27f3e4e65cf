#!/usr/bin/env bash
# Runs a server under load with several global allocators, in turns, and prints one table.
#
#   benches/server/run.sh                         system, larder, larder-memory, larder-speed, mimalloc, jemalloc
#   benches/server/run.sh system larder           only these
#   benches/server/run.sh --seconds 60 --rounds 3 larder
#
# `--seconds` is one server's time in one round (30), `--rounds` how often each has its turn (2),
# `--connections` how many ask at once (64). Fails at the first wrong answer. mimalloc and jemalloc
# need a C compiler.
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-../../target}
mkdir -p "$target/server"
target=$(cd "$target/server" && pwd)
export CARGO_TARGET_DIR=$target CARGO_TERM_COLOR=never

options=()
allocators=()
while [ $# -gt 0 ]; do
    case "$1" in
        --seconds | --rounds | --connections)
            options+=("$1" "${2:-}")
            shift
            ;;
        -*) echo "run.sh: no option is named $1; the head of this file has all" >&2; exit 2 ;;
        *) allocators+=("$1") ;;
    esac
    shift
done
[ ${#allocators[@]} -gt 0 ] ||
    allocators=(system larder larder-memory larder-speed mimalloc jemalloc)

cargo build --quiet --locked --release --bin load
servers=()
for allocator in "${allocators[@]}"; do
    echo "building the server with $allocator" >&2
    cargo build --quiet --locked --release --bin server --features "$allocator"
    cp "$target/release/server" "$target/server-$allocator"
    servers+=("$allocator=$target/server-$allocator")
done
exec "$target/release/load" "${options[@]}" "${servers[@]}"
