#!/usr/bin/env bash
# Packs what asks a GPU eight minutes of questions into one archive, for a machine that has a GPU and no Rust: Linux on
# x86-64 with bash, Python 3.8 and a glibc as new as here; PyTorch where its part is to be answered.
#
#   cuda/carry.sh FILE.tar.gz        here
#   tar xzf FILE.tar.gz              there
#   larder-hardware/run --out DIR    there: see cuda/hardware/run, which it is
#
# Tests are those that `cargo test` builds, with debug assertions; programs are built for release. Of the tests those are
# packed that run on a GPU: which ones the stand-in says.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
archive=$(realpath -m "$1")
# Any profile but dev will do.
profile=${LARDER_CARRY_PROFILE:-carry}
target=${CARGO_TARGET_DIR:-target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/larder-hardware
mkdir -p "$folder"/{bin,lists,traces,python}

# "name path" of each program that cargo built, by its messages.
built() {
    sed -n 's/.*"target":{[^}]*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p'
}

# Without what only a debugger reads.
put() {
    strip --strip-debug -o "$folder/$2" "$1"
}

cargo test -p larder-cuda --test all --test conformance --no-run --message-format=json | built >"$work/tests"
cargo bench --profile "$profile" -p larder-cuda -p larder-benches --bench driver_calls --bench host_pairs --no-run --message-format=json | built >"$work/programs"
cargo build --profile "$profile" -p larder-cli -p larder-cuda-c-api
while read -r name path; do put "$path" "bin/test-$name"; done <"$work/tests"
while read -r name path; do put "$path" "bin/$name"; done <"$work/programs"
put "$target/$profile/larder" bin/larder
put "$target/$profile/deps/liblarder_cuda_stand_in.so" bin/liblarder_cuda_stand_in.so
cp -r cuda/c-api/python/larder_cuda "$folder/python/larder_cuda"
rm -rf "$folder/python/larder_cuda/__pycache__"
put "$target/$profile/liblarder_cuda.so" python/larder_cuda/liblarder_cuda.so
cp cuda/c-api/python/train_torch.py cuda/hardware/replay_torch.py "$folder/python/"
cp cuda/hardware/run "$folder/run"
# Python reads gzip without other packages.
for trace in benches/traces/*.zst; do
    zstd -dcq "$trace" | gzip -9n >"$folder/traces/$(basename "$trace" .zst).gz"
done
{
    git log -1 --format='commit %H of %cI' 2>/dev/null || echo 'commit unknown'
    git diff --quiet HEAD 2>/dev/null || echo 'with changes that are not committed'
    rustc --version
} >"$folder/packed.txt"

# Tests that say that they are skipped on a GPU are not packed.
for name in all conformance; do
    program=$folder/bin/test-$name
    LARDER_TEST_AS_REAL=1 LARDER_CUDA_DRIVER=stand-in LARDER_CUDA_STAND_IN=$folder/bin/liblarder_cuda_stand_in.so \
        "$program" --nocapture 2>&1 | sed -n 's/.*skipped: \([^ ]*\) \(needs the stand-in\|on a real\).*/\1/p' \
        >"$work/skipped"
    "$program" --list --ignored --format terse | sed -n 's/: test$//p' >>"$work/skipped"
    sort -o "$work/skipped" "$work/skipped"
    "$program" --list --format terse | sed -n 's/: test$//p' | sort | comm -23 - "$work/skipped" >"$folder/lists/$name"
done

tar czf "$archive" -C "$work" larder-hardware
needs=$(objdump -T "$folder"/bin/* 2>/dev/null | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1) || true
echo "packed: $archive, $(($(stat -c %s "$archive") >> 20)) MiB, $(cat "$folder"/lists/* | wc -l) tests; needs ${needs:-a C library}"
