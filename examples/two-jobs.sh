#!/usr/bin/env bash
# Two jobs on one simulated GPU: each replays a recorded training run on the stand-in driver. Together they hold
# at most 64 MiB.
#
#   examples/two-jobs.sh [SECONDS]
#
# `night` runs for the whole time (12 seconds); `day`, which has a higher priority, starts later and ends
# sooner. A coordinator prints each limit that it sets, and why; between its lines `larder top` shows what each
# job holds. A job exits with 1 if a byte is not as it was written. An installed `larder` of this repository's
# version is used; without one, it is built.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-12}
echo "For $seconds s, two jobs share 64 MiB of a simulated GPU. \`night\` has them alone for 3 s; then \`day\`, of higher"
echo "priority, runs for $((seconds / 2)) s. The coordinator says which limits it sets; every 2 s, a table shows the jobs."
version=$(sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' Cargo.toml)
larder=$(command -v larder || true)
if [ -z "$larder" ] || [ "$("$larder" --version)" != "larder $version" ]; then
    echo 'First, larder is built, which takes a few minutes the first time'
    cargo build --quiet --release -p larder-cli
    larder=${CARGO_TARGET_DIR:-target}/release/larder
fi
folder=$(mktemp -d)
trap 'kill $coordinator 2> /dev/null; rm -rf "$folder"' EXIT
export LARDER_CUDA_DRIVER=stand-in LARDER_STAND_IN_SHARED=$folder/device

# job NAME PRIORITY SECONDS TRACE
job() {
    "$larder" job "benches/traces/$4" --in "$folder" --name "$1" --priority "$2" --seconds "$3" --scale 100 \
        > "$folder/$1.said" 2>&1
}
"$larder" coordinate --total 64MiB --step 2MiB "$folder" &
coordinator=$!
job night 1 "$seconds" gpt2s_train.trace.zst &
night=$!
sleep 3
job day 5 $((seconds / 2)) resnet50_train.trace.zst &
day=$!
while kill -0 "$night" 2> /dev/null; do
    sleep 2
    "$larder" top --once "$folder"
done
wait "$day" && wait "$night" || { cat "$folder"/*.said; exit 1; }
# figure NAME FIGURE
figure() {
    sed -n "s/.*\"$2\":\([0-9]*\).*/\1/p" "$folder/$1.said"
}
echo "Both jobs ended, and each byte was as written. Blocks on the device and on the host: \`night\`" \
    "$(figure night on_device) and $(figure night on_host), \`day\` $(figure day on_device) and $(figure day on_host)."
