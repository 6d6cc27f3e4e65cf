#!/usr/bin/env bash
# cudarc's own tests and examples, as they are published, on the stand-in: by themselves, with liblarder_cuda.so
# preloaded, and within a limit that leaves them room. Each must answer the same three times.
#
# Left out: what needs kernels (the stand-in runs no PTX), and what compares times. Needs the registry.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
cargo build --quiet -p larder-cuda-c-api -p larder-cuda-stand-in --target-dir "$target"
published=$(cargo metadata --format-version 1 --locked --filter-platform x86_64-unknown-linux-gnu | grep -o '"manifest_path":"[^"]*/cudarc-[^"]*/Cargo.toml"' \
    | head -n 1 | cut -d'"' -f4)
work=$target/cudarc
mkdir -p "$work/driver"
rm -rf "$work/source"
cp -r "$(dirname "$published")" "$work/source"
printf '\n[workspace]\n' >> "$work/source/Cargo.toml"
ln -sf "$target/debug/deps/liblarder_cuda_stand_in.so" "$work/driver/libcuda.so"
library=$target/debug/liblarder_cuda.so

features='std,driver,dynamic-loading,cuda-12080,nvrtc'
build() {
    cargo "$@" --quiet --manifest-path "$work/source/Cargo.toml" --target-dir "$work/target" \
        --no-default-features --features "$features"
}
tests=$(build test --lib --no-run --message-format=json | grep -o '"executable":"[^"]*"' | cut -d'"' -f4)
examples=(01-allocate 02-copy 12-context-config)
for example in "${examples[@]}"; do build build --example "$example"; done

# The third word of a test's line: what became of it.
outcomes() {
    "$@" "$tests" --test-threads=1 --include-ignored driver 2> /dev/null | grep -E '^test .* \.\.\. ' \
        | grep -vE 'launch|faster|end_capture|unified_memory_(global|host|single)|peer_memcpy|side_assert' || true
    for example in "${examples[@]}"; do
        "$@" "$work/target/debug/examples/$example" > "$work/said" 2>&1 && echo "$example: $(cksum < "$work/said")"
    done
}
export LD_LIBRARY_PATH=$work/driver
outcomes env > "$work/plain"
outcomes env LD_PRELOAD="$library" > "$work/preloaded"
outcomes env LD_PRELOAD="$library" LARDER_CUDA_LIMIT=$((8 << 30)) > "$work/limited"
outcomes env LD_PRELOAD="$library" LARDER_CUDA_LIMIT=0 > "$work/refused"
cat "$work/plain"
for kind in preloaded limited; do
    cmp "$work/plain" "$work/$kind" || { echo "cudarc.sh: other answers when $kind" >&2; exit 1; }
done
if grep -E 'FAILED' "$work/plain"; then
    echo 'cudarc.sh: a test fails without Larder' >&2
    exit 1
fi
if cmp --silent "$work/plain" "$work/refused"; then
    echo 'cudarc.sh: a limit of 0 bytes refuses nothing, so the library is not in front' >&2
    exit 1
fi
echo "$(grep -c ' ok$' "$work/plain") tests and ${#examples[@]} examples: equal"
