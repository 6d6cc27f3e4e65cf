#!/usr/bin/env bash
# Builds the tests, the benches and the example of larder-cuda, and the replay of recorded traces, and
# puts the programs into a folder, to be run on a machine with a GPU and without Rust.
#
#   cuda/carry.sh FOLDER          here
#   FOLDER/run                    there: the tests on the real driver, then the others; logs beside it
#   FOLDER/run stand-in           the same on the stand-in, to try it
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)

# The programs, by the names of their targets.
built() {
    sed -n 's/^.*Executable.*(\(.*\))$/\1/p'
}
cargo test --release -p larder-cuda --no-run 2>&1 | tee /dev/stderr | built | while read -r program; do
    name=$(basename "$program")
    cp "$program" "$folder/test-${name%-*}"
done
for bench in driver_calls host_pairs; do
    cargo bench -p larder-cuda --bench "$bench" --no-run 2>&1 | tee /dev/stderr | built | while read -r program; do
        cp "$program" "$folder/$bench"
    done
    rm -f "$folder/test-$bench"
done
cargo build --release -p larder-cuda --example train
cargo build --release -p larder-bench
cp "${CARGO_TARGET_DIR:-target}/release/examples/train" "${CARGO_TARGET_DIR:-target}/release/larder" "$folder/"
mkdir -p "$folder/traces"
cp benches/traces/*.zst "$folder/traces/"
cp "${CARGO_TARGET_DIR:-target}/release/deps/liblarder_cuda_stand_in.so" "$folder/"

cat >"$folder/run" <<'RUN'
#!/usr/bin/env bash
# Runs what lies beside it; see cuda/carry.sh. The exit code is the number of programs that failed.
set -u
cd "$(dirname "$0")"
export LARDER_CUDA_DRIVER=${1:-real} LARDER_CUDA_STAND_IN=$PWD/liblarder_cuda_stand_in.so
logs=${LOGS:-$PWD/logs}
mkdir -p "$logs"
failed=0
for program in ./test-*; do
    name=$(basename "$program")
    if timeout 900 "$program" --nocapture --test-threads=1 >"$logs/$name.log" 2>&1; then
        echo "passed  $name: $(grep -c '^test .* ok$\|\.\.\. ok$\|^ok$' "$logs/$name.log") tests"
    else
        echo "FAILED  $name (code $?)"
        grep -E '^test .*FAILED|panicked at|^---- |signal' "$logs/$name.log" | head -n 40
        failed=$((failed + 1))
    fi
done
timeout 400 ./driver_calls --max-bytes $((8 << 30)) >"$logs/driver_calls.txt" 2>&1 || failed=$((failed + 1))
cat "$logs/driver_calls.txt"
timeout 100 ./host_pairs --bench >"$logs/host_pairs.txt" 2>&1 || failed=$((failed + 1))
cat "$logs/host_pairs.txt"
timeout 100 ./train >"$logs/train.txt" 2>&1 || failed=$((failed + 1))
cat "$logs/train.txt"
for passes in 1 11; do
    timeout 200 ./larder replay traces/*.zst --driver "$LARDER_CUDA_DRIVER" --passes "$passes" --json \
        --allocator device --allocator device-budget --allocator device-planned \
        --allocator cudarc --allocator cuda-async >"$logs/replay-$passes.jsonl" 2>"$logs/replay-$passes.log" \
        || failed=$((failed + 1))
done
timeout 200 ./larder replay traces/*.zst --driver "$LARDER_CUDA_DRIVER" --allocator device \
    --allocator device-planned --allocator cudarc --allocator cuda-async >"$logs/replay.txt" 2>&1
cat "$logs/replay.txt"
exit "$failed"
RUN
chmod +x "$folder/run"
echo "packed: $folder"
