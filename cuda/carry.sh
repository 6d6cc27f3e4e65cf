#!/usr/bin/env bash
# Packs the tests, the benches and the example of larder-cuda, and the replay of recorded traces, into a
# folder that needs no Rust where it runs: Linux on x86-64 with bash, coreutils and a glibc as new as here.
#
#   cuda/carry.sh FOLDER          here
#   FOLDER/run                    there: see cuda/carried.sh, which it is
#
# With CARGO_PROFILE_RELEASE_LTO=off it builds in half the time.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1/bin" "$1/traces"
folder=$(cd "$1" && pwd)
target=${CARGO_TARGET_DIR:-target}

# "name path" of each program that cargo built, by its messages.
built() {
    sed -n 's/.*"target":{[^}]*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p'
}

# Without what only a debugger reads.
put() {
    cp "$1" "$folder/bin/$2.new"
    strip --strip-debug "$folder/bin/$2.new"
    mv "$folder/bin/$2.new" "$folder/bin/$2"
}

rm -f "$folder"/bin/*
cargo test --release -p larder-cuda --no-run --message-format=json | grep '"test":true}' | built \
    | while read -r name path; do put "$path" "test-$name"; done
cargo bench -p larder-cuda --bench driver_calls --bench host_pairs --no-run --message-format=json | built \
    | while read -r name path; do put "$path" "$name"; done
cargo build --release -p larder-cuda --example train
cargo build --release -p larder-cli
put "$target/release/examples/train" train
put "$target/release/larder" larder
# Beside the programs, where they look for it.
put "$target/release/deps/liblarder_cuda_stand_in.so" liblarder_cuda_stand_in.so
cp benches/traces/*.zst "$folder/traces/"
cp cuda/carried.sh "$folder/run"
chmod +x "$folder/run"
{
    git log -1 --format='commit %H of %cI' 2>/dev/null || echo 'commit unknown'
    git diff --quiet HEAD 2>/dev/null || echo 'with changes that are not committed'
    rustc --version
} >"$folder/packed.txt"

ls "$folder"/bin/test-conformance "$folder"/bin/test-all "$folder"/bin/driver_calls >/dev/null
needs=$(objdump -T "$folder"/bin/* 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1) || true
echo "packed: $folder, $(du -sm "$folder" --exclude='results-*' | cut -f1) MiB; needs ${needs:-a C library}"
