#!/usr/bin/env bash
# Everything a change must pass, in the order of how soon it tells. Run it before each commit.
#
#   ./check.sh            all of it
#   ./check.sh fmt tests  only these steps
#
# Steps: fmt prose layers clippy tests docs features deps publish api worker examples hardware nvidia loom fuzz mutants long
# (publish and nvidia ask registries, publish wants the oldest toolchain, api and fuzz want a nightly one,
# cargo-public-api and cargo-fuzz; all four say so when they skip; mutants and long are slow and run only when
# named; mutants are those of mutants/list.txt, not those of cargo-mutants).
set -euo pipefail
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-target}
case "$target" in /*) ;; *) target=$PWD/$target ;; esac

# With the seconds since the start.
say() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }
fail() { printf 'check.sh: %s\n' "$1" >&2; exit 1; }

step_fmt() {
    cargo fmt --all --check
    cargo fmt --manifest-path std-shim/preload/Cargo.toml --check
}

# Habits of prose that a reader of std's documentation stops at, and what to write instead. Tests, decisions and
# results are exempt.
step_prose() {
    local wrong
    wrong=$(git ls-files '*.rs' '*.md' \
        | grep -vE '/tests?/|tests\.rs$|^benches/(results|versus-worker/corpus)/|^docs/DECISIONS\.md$|^CHANGELOG' \
        | xargs perl -ne '
            BEGIN {
                $doc = qr{^\s*//[/!] };
                @habits = (
                    [qr{${doc}Whether (it|this|they)\b}, "name the noun"],
                    [qr{${doc}(Those|Ones?) (of (\[|them\b|the two\b)|that\b|which\b)}, "name the noun"],
                    [qr{${doc}(What|Who) }, "begin with a noun, or a verb in the third person"],
                    [qr{${doc}[A-Z][a-z]+s?\.$}, "say of what"],
                    [qr{\bin vain\b}, "fruitless, without success"],
                    [qr{\bby and by\b}, "gradually"],
                    [qr{\b(or|and) the like\b}, "give an example"],
                    [qr{\bbut for\b}, "except"],
                    [qr{\b(nobody|whoever)\b}, "no thread, no code, the caller"],
                    [qr{\b(it|that|flag|state|which|`\w+`) tells\b}, "says, returns, is set if"],
                    [qr{\b(given?|gives|giving) back\b}, "free, release, return"],
                    [qr{\bwhat (is|was) (asked|held|idle|live|measured|queued|read|written)\b}, "name the noun"],
                );
            }
            for my $habit ($ARGV =~ /\.md$/ || m{//} ? @habits : ()) {
                my ($words, $instead) = @$habit;
                print "$ARGV:$.: $&: $instead\n" if /$words/;
            }
            close ARGV if eof;
        ')
    [ -z "$wrong" ] || fail "$wrong"
}

# Imports only go down (docs/ARCHITECTURE.md); names that belong to one layer stay there.
step_layers() {
    local words='core/src/units.rs core/src/stream.rs core/src/block.rs core/src/byte_count.rs core/src/error.rs core/src/stats.rs core/src/attributes.rs'
    # shellcheck disable=SC2086
    if grep -nE '^use crate::(best_fit|engine|regions|pages|shared|sync|sub_allocator)' $words; then
        fail 'a word uses a layer above it'
    fi
    if grep -rnE '^use crate::' core/src/table | grep -vE 'use crate::(block|error|table)::'; then
        fail 'the structures over tables use a layer above them'
    fi
    if grep -rnE '^use crate::small' core/src/engine core/src/regions core/src/pages core/src/sync; then
        fail 'a layer uses the small blocks above it'
    fi
    if grep -rnE '^use crate::(best_fit|engine|regions|pages|shared|sub_allocator)' core/src/sync core/src/sub_allocator.rs; then
        fail 'sync or the sub-allocator trait uses a layer above it'
    fi
    if grep -rnE '^use crate::(regions|pages|shared)' core/src/engine | grep -v tests; then
        fail 'the engine uses the pools above it'
    fi
    if grep -nE '^use crate::(best_fit|engine|regions|pages|shared|sub_allocator)' core/src/access.rs core/src/host_access.rs; then
        fail 'access to memory uses a layer above it'
    fi
    if grep -rnE '^use crate::decorate' core/src --include='*.rs' | grep -v '^core/src/decorate/'; then
        fail 'decorators are used by what they are around'
    fi
    if grep -rnE '(core|std)::sync::atomic|\bloom::' core/src --include='*.rs' | grep -v '^core/src/sync/'; then
        fail 'atomics, locks and loom are named in core/src/sync only'
    fi
    if grep -rnE '(core|std)::sync::atomic' std-shim/src --include='*.rs' | grep -vE '/tests/|_tests\.rs'; then
        fail 'the process heap takes its atomics from larder_core::sync'
    fi
    if grep -rnE '\bstd::|\balloc::|\bcuda\b' core/src --include='*.rs' | grep -vE '//[/!]|thread::|core::alloc::|^core/src/table/fixed_vec.rs:'; then
        fail 'the core names no std, no alloc but for its fixed vectors, no device'
    fi
    # `unsafe` only in the files that CONTRIBUTING.md lists (a line ending in `/` lists a folder).
    local listed
    listed=$(sed -n '/^## Where `unsafe`/,/^## Testing/s/^| `\([^`]*\)` |.*/\1/p' CONTRIBUTING.md)
    [ -n "$listed" ] || fail 'CONTRIBUTING.md lists no files'
    while read -r file; do
        printf '%s\n' "$listed" | while read -r entry; do
            case "$file" in "$entry" | "${entry%/}"/*) echo yes ;; esac
        done | grep yes >/dev/null || fail "unsafe in $file, which CONTRIBUTING.md does not list"
    done < <(git ls-files --cached --others --exclude-standard '*.rs' \
        | xargs grep -lE '\bunsafe\b' | xargs grep -LE 'forbid\(unsafe_code\)' || true)
    for module in access attributes best_fit block byte_count decorate error limits pack page_index pages pool prmalloc shared stats steps stream sub_allocator table units vmem; do
        grep -B1 -E "^(pub )?mod $module;" core/src/lib.rs | grep -q 'forbid(unsafe_code)' \
            || fail "core/src/lib.rs must forbid unsafe code in $module"
    done
    ./mutants/run.sh --check
    # Long files are named, so that somebody thinks of splitting them.
    git ls-files '*.rs' | xargs wc -l | awk '$2 != "total" && $1 > 400 { print "note: " $2 " has " $1 " lines" }'
}

step_clippy() {
    cargo clippy --workspace --all-targets -- -D warnings
    cargo clippy -p larder --all-targets --features allocator-api2,pprof -- -D warnings
    # Without the standard library, as malloc for any program.
    cargo clippy --release --manifest-path std-shim/preload/Cargo.toml --target-dir "$target/malloc" -- -D warnings
}

step_tests() {
    cargo test --workspace
    cargo test -p larder --features allocator-api2,pprof
}

step_docs() {
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
    # The picture is what the rows say, and the guide is a book, where there are the programs for it.
    if command -v python3 >/dev/null; then benches/results/picture.py --check; fi
    if command -v mdbook >/dev/null; then docs/guide/build.sh; fi
    # `pip install kubernetes-validate` has the schemas in it; Rust's types of Kubernetes let unknown fields pass.
    if command -v kubernetes-validate >/dev/null; then
        kubernetes-validate --strict --quiet examples/kubernetes/*.yaml
    fi
}

# The core builds as a program without an operating system would take it.
step_features() {
    cargo build -p larder-core --no-default-features
    cargo build -p larder-core --no-default-features --release
    cargo build -p larder-core --no-default-features --features alloc
    # A processor without an OS, and without 64-bit atomics.
    if rustup target list --installed 2>/dev/null | grep -qx thumbv7em-none-eabihf; then
        cargo build -p larder-core --all-features --release --target thumbv7em-none-eabihf
    else
        echo 'skipped: thumbv7em needs `rustup target add thumbv7em-none-eabihf`'
    fi
    # The profiles without pprof's format.
    cargo check -p larder --features heap-profile
    # The oldest and the newest interface of CUDA, and a program that links the driver.
    cargo check -p larder-cuda --features cudarc/cuda-11040
    cargo check -p larder-cuda --features cudarc/cuda-13040
    cargo check -p larder-cuda --features cudarc/dynamic-linking
    # With no version named, without jobs.
    cargo check -p larder-cuda --no-default-features
}

step_deps() {
    depends larder-core 'heapless portable-atomic static_assertions'
    depends larder 'larder-core libc'
    depends larder-trace 'thiserror zstd'
    depends larder-cuda 'cudarc larder-control larder-core larder-cuda-abi libc libloading thiserror'
    depends larder-cuda-c-api 'cudarc larder-core larder-cuda libc thiserror'
    depends larder-control 'larder-core notify rustix serde serde_json thiserror'
    depends larder-jobs 'clap ctrlc cudarc larder-control larder-core larder-cuda larder-cuda-stand-in larder-trace ratatui rust-embed serde serde_json tempfile terminal_size thiserror'
    depends larder-cuda-abi ''
    depends larder-cuda-stand-in 'larder-cuda-abi libc'
}

# A package has these direct dependencies and no others, on whatever system.
depends() {
    local have
    have=$(cargo tree -p "$1" --target all --edges normal --depth 1 --prefix none --format '{p}' | tail -n +2 | cut -d' ' -f1 | sort | xargs)
    [ "$have" = "$2" ] || fail "$1 depends on: $have"
}

# Packages can be published, with no warning but of what they leave out, and build with the oldest toolchain
# from what users get; the program runs.
step_publish() {
    local oldest said work
    # Nobody debugs these.
    local -x RUSTC CARGO_PROFILE_DEV_DEBUG=0
    oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    if ! RUSTC=$(rustup which --toolchain "$oldest" rustc 2>/dev/null); then
        echo "skipped: needs \`rustup toolchain install $oldest --profile minimal\`"
        return
    fi
    # A new folder each time, which stays if this fails: cargo unpacks a version only once for each folder.
    mkdir -p "$target"
    work=$(mktemp -d "$target/publish.XXXXXX")
    said=$(cargo publish --workspace --dry-run --allow-dirty --target-dir "$work" 2>&1) || fail "$said"
    if printf '%s\n' "$said" | grep -vE '^warning: (ignoring (test|example|benchmark) |aborting upload)' \
        | grep -A 8 '^warning'; then
        fail 'a package would be published with these warnings'
    fi
    # As who installs it has it: alone, with the stand-in inside.
    install -D "$work/debug/larder" "$work/alone/larder"
    env -u LARDER_CUDA_STAND_IN "$work/alone/larder" replay --driver stand-in --allocator device \
        benches/traces/resnet50_train.trace.zst
    rm -rf "$work"
}

# docs/api has what each published package offers but the parts of the program. What changed is written there, to be looked at and committed.
step_api() {
    if ! cargo public-api --version >/dev/null 2>&1 || ! cargo +nightly --version >/dev/null 2>&1; then
        echo 'skipped: needs a nightly toolchain and `cargo install cargo-public-api --locked`'
        return
    fi
    local package
    for package in larder-core larder larder-trace larder-cuda larder-cuda-abi larder-control; do
        cargo +nightly public-api --package "$package" --all-features --simplified --simplified --simplified \
            --target-dir "$target/api" >"docs/api/$package.txt"
    done
    git diff --exit-code -- docs/api || fail 'the public API is another one than docs/api had, which has it now'
}

# The workers of `larder versus`, with every workload at a small scale: on the system's allocator,
# then on ours, then with steps.
step_worker() {
    (
        cd benches/versus-worker
        export CARGO_TARGET_DIR=$target/versus-check
        cargo fmt --check
        cargo clippy --features system,tail --all-targets -- -D warnings
        cargo test --features system,tail
        cargo test --features larder
        cargo test --features larder-steps workloads
    )
}

# The lines of examples/README.md, as they stand there.
step_examples() {
    local lines line
    lines=$(sed -n 's/^|[^|]*| `\([^`]*\)` |.*/\1/p' examples/README.md)
    [ -n "$lines" ] || fail 'examples/README.md has no lines to run'
    while read -r line; do
        say "$line"
        (eval "$line") < /dev/null || fail "an example failed: $line"
    done <<<"$lines"
}

# What we wrote down of CUDA, beside NVIDIA's assembler, headers and library. Needs no GPU.
step_nvidia() {
    if ! command -v python3 >/dev/null; then
        echo 'skipped: there is no python3'
        return
    fi
    cuda/nvidia.py "$target/nvidia"
}

# What a machine with a GPU is given, in its shortest form: packed, and some of its questions asked on the stand-in.
step_hardware() {
    if ! command -v python3 >/dev/null || ! command -v zstd >/dev/null; then
        echo 'skipped: needs python3 and zstd'
        return
    fi
    local work tests
    mkdir -p "$target"
    work=$(mktemp -d "$target/hardware.XXXXXX")
    # It mostly waits.
    cuda/hardware/test_run.py >"$work/tests.log" 2>&1 &
    tests=$!
    cuda/carry.sh "$work/archive.tar.gz"
    tar xzf "$work/archive.tar.gz" -C "$work"
    cuda/hardware/test_probes.py "$work/larder-hardware"
    "$work/larder-hardware/run" stand-in --only machine,alias,unmap,captures,conformance --out "$work/out"
    cat "$work/out/answers.txt"
    wait "$tests" || fail "$(cat "$work/tests.log")"
    rm -rf "$work"
}

step_loom() {
    (
        cd loom-tests
        export CARGO_TARGET_DIR=$target/loom
        cargo fmt --check
        cargo clippy --all-targets --no-deps -- -D warnings
        cargo test --release
    )
}

step_fuzz() {
    if ! cargo fuzz --version >/dev/null 2>&1 || ! cargo +nightly --version >/dev/null 2>&1; then
        echo 'skipped: needs a nightly toolchain and `cargo install cargo-fuzz`'
        return
    fi
    local target runs longest
    while read -r target runs longest; do
        mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"
        # What is found goes into the first folder; seeds are what a run starts from.
        cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" \
            -- -runs="${FUZZ_RUNS:-$runs}" -max_len="$longest" < /dev/null
    done <<'TARGETS'
bfc 100000 4096
paged 50000 4096
plan 50000 300
pool 50000 2048
steps 50000 512
heap 50000 4096
config 50000 4096
status 50000 4096
trace 100000 4096
csv 20000 1024
TARGETS
}

# Planted defects that no mechanical operator makes. cargo-mutants makes the others, some 12,000, a few
# files at a time and never here.
step_mutants() {
    ./mutants/run.sh --check
    ./mutants/run.sh
    echo 'the mechanical ones, a file at a time: cargo mutants -p larder-core -f core/src/units.rs (.cargo/mutants.toml)'
}

# Every call refused in every way; the other manners of the stand-in; what other people's programs show, and
# what systems make hard, for which it fetches from the registry.
step_long() {
    LARDER_FAULTS=all cargo test -p larder-cuda --test all -- fault refus moving:: limits::
    LARDER_FAULTS=all cargo test -p larder --lib heap
    LARDER_ROUNDS=all cargo test -p larder-core --test all random
    LARDER_ROUNDS=all cargo test -p larder --test process --test programs --test malloc
    LARDER_ROUNDS=all cargo test --release -p larder --test misuse --test limits
    LARDER_ROUNDS=all CARGO_PROFILE_RELEASE_DEBUG=line-tables-only cargo test --release -p larder --features heap-profile --test guarded
    LARDER_ROUNDS=all cargo test --release -p larder-jobs restarts
    LARDER_CUDA_DRIVER=stand-in LARDER_STAND_IN_MAPPING_WAITS=1 cargo test -p larder-cuda --tests
    LARDER_CUDA_DRIVER=stand-in LARDER_STAND_IN_SEED=3 cargo test -p larder-cuda --tests
    LARDER_STREAMS=1000000 cargo test --release -p larder-cuda --test all streams_come_and_go
    LARDER_OPERATIONS=10000000 cargo test --release -p larder-cuda --test all a_long_run
    LARDER_PROGRAMS=2000 cargo test -p larder-cuda --test all programs_give_what
    LARDER_PROGRAMS=1000 cargo test -p larder-cuda --test all programs_that_sleep
    LARDER_PROGRAMS=1000 cargo test -p larder-cuda --test all programs_of_all_acts
    cuda/c-api/cudarc.sh
    benches/suites/run.sh
    benches/server/run.sh
    benches/systems/run.sh
}

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(fmt prose layers clippy tests docs features deps publish api worker examples nvidia hardware loom fuzz)
for step in "${steps[@]}"; do
    say "$step"
    "step_$step"
done
say 'all passed'
