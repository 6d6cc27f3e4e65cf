#!/usr/bin/env bash
# Builds the tests and the bench of larder-cuda and puts the programs into a folder, to be run on a
# machine with a GPU and without Rust.
#
#   cuda/carry.sh FOLDER          here
#   FOLDER/run                    there: the tests on the real driver, then the bench; logs beside it
#   FOLDER/run stand-in           the same on the stand-in, to try it
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -eq 1 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
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
cargo bench -p larder-cuda --bench driver_calls --no-run 2>&1 | tee /dev/stderr | built | while read -r program; do
    cp "$program" "$folder/driver_calls"
done
rm -f "$folder/test-driver_calls"
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
    if timeout 300 "$program" --nocapture --test-threads=1 >"$logs/$name.log" 2>&1; then
        echo "passed  $name: $(grep -c '^test .* ok$\|\.\.\. ok$\|^ok$' "$logs/$name.log") tests"
    else
        echo "FAILED  $name (code $?)"
        grep -E '^test .*FAILED|panicked at|^---- |signal' "$logs/$name.log" | head -n 40
        failed=$((failed + 1))
    fi
done
timeout 400 ./driver_calls --most-bytes $((8 << 30)) >"$logs/driver_calls.txt" 2>&1 || failed=$((failed + 1))
cat "$logs/driver_calls.txt"
exit "$failed"
RUN
chmod +x "$folder/run"
echo "packed: $folder"
