#!/usr/bin/env bash
# Runs the tests of eight published crates with Larder and with the system's allocator.
#
#   benches/suites/run.sh                    all eight, with Larder::new()
#   benches/suites/run.sh tokio rayon        only these
#   benches/suites/run.sh --heap memory      with Larder::memory(); also `new`, `speed`; several are fine
#   benches/suites/run.sh --release          optimised; else with debug assertions, ours too
#   benches/suites/run.sh --relock           resolves all dependencies anew and writes suites.lock
#
# The packages come from the registry at the versions below, with their tests in them. Each test
# program gets one line more, which names the global allocator; nothing else of it changes. Test
# programs that bring an allocator of their own (they count or refuse) keep it. Documentation's
# examples are not run. Fails if a test passes with the system's allocator and not with Larder.
# Needs cargo and a C linker; peaks of memory are shown where GNU time is.
set -euo pipefail
cd "$(dirname "$0")"
here=$PWD
target=${CARGO_TARGET_DIR:-../../target}
mkdir -p "$target/suites"
work=$(cd "$target/suites" && pwd)
export CARGO_TARGET_DIR=$work/target CARGO_TERM_COLOR=never LC_ALL=C
# Backtraces need it, tests do not; tokio's 190 test programs would fill the disk with it.
export CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_RELEASE_DEBUG=0
# A test program that hangs is ended after so many seconds.
limit=900

# Name, version, and the features whose tests a plain build leaves out.
suites='
hashbrown         0.17.1  rayon,serde
indexmap          2.14.2  serde
bytes             1.12.2  serde
serde_json        1.0.154 raw_value
petgraph          0.8.3   quickcheck,rayon
crossbeam-channel 0.5.17  std
rayon             1.12.0  -
tokio             1.54.1  full,test-util
'

fail() { printf 'run.sh: %s\n' "$1" >&2; exit 2; }
say() { printf '%s\n' "$1" >&2; }

heaps=(system)
profile=()
wanted=()
locked=(--locked)
while [ $# -gt 0 ]; do
    case "$1" in
        --heap)
            case "${2:-}" in
                new) heaps+=(larder) ;;
                memory | speed) heaps+=("larder-$2") ;;
                *) fail '--heap takes new, memory or speed' ;;
            esac
            shift
            ;;
        --release) profile=(--release) ;;
        --relock) locked=() ;;
        -*) fail "no option is named $1; the head of this file has all" ;;
        *) wanted+=("$1") ;;
    esac
    shift
done
[ ${#heaps[@]} -gt 1 ] || heaps+=(larder)

rows() { sed '/^$/d' <<<"$suites"; }
[ ${#wanted[@]} -gt 0 ] || mapfile -t wanted < <(rows | awk '{print $1}')
for name in "${wanted[@]}"; do
    rows | grep -q "^$name " || fail "no suite is named $name"
done

# The sources as the registry has them: a package that depends on exactly these versions.
mkdir -p "$work/fetch/src" "$work/logs"
: >"$work/fetch/src/lib.rs"
{
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n[dependencies]\n'
    rows | awk '{print $1 " = \"=" $2 "\""}'
} >"$work/fetch/Cargo.toml"
host=$(rustc -vV | sed -n 's/^host: //p')
say 'fetching the packages'
sources=$(cargo metadata --quiet --format-version 1 --filter-platform "$host" \
    --manifest-path "$work/fetch/Cargo.toml" | grep -o '"manifest_path":"[^"]*"' | cut -d '"' -f 4)

# All eight are copied, whichever run, so that one lock file fits.
prepare() {
    local name=$1 version=$2 source copy=$work/packages/$1
    source=$(grep "/$name-$version/Cargo.toml$" <<<"$sources") || fail "$name $version was not fetched"
    rm -rf "$copy"
    mkdir -p "$work/packages"
    cp -R "${source%/Cargo.toml}" "$copy"
    chmod -R u+w "$copy"
    printf '\n[dev-dependencies.suite-heap]\npath = "%s/heap"\n' "$here" >>"$copy/Cargo.toml"
    printf '\n#[cfg(test)]\nextern crate suite_heap as _;\n' >>"$copy/src/lib.rs"
    local file
    for file in "$copy"/tests/*.rs "$copy"/tests/*/main.rs; do
        # Two allocators do not link. Where there are none, the pattern itself comes.
        if [ -e "$file" ] && ! grep -q '^#\[global_allocator\]' "$file"; then
            printf '\nextern crate suite_heap as _;\n' >>"$file"
        fi
    done
}
while read -r name version _; do
    prepare "$name" "$version"
done < <(rows)
{
    printf '[workspace]\nresolver = "3"\nmembers = ["packages/*"]\n'
    # Crates that tokio's tests use would else bring a second tokio.
    printf '\n[patch.crates-io]\ntokio = { path = "packages/tokio" }\n'
} >"$work/Cargo.toml"
if [ ${#locked[@]} -gt 0 ]; then
    cp "$here/suites.lock" "$work/Cargo.lock"
else
    rm -f "$work/Cargo.lock"
    cargo generate-lockfile --quiet --manifest-path "$work/Cargo.toml"
    cp "$work/Cargo.lock" "$here/suites.lock"
fi

time_command=()
if /usr/bin/time -f %M true >/dev/null 2>&1; then
    time_command=(/usr/bin/time -o "$work/peak" -f %M)
fi

# Runs one test program; adds its tests to the lists of this suite and heap.
run_program() {
    local target_name=$1 program=$2 list=$3 log=$4 code=0
    : >"$work/peak"
    (
        cd "$package"
        # As cargo sets it for tests that look for their files.
        CARGO_MANIFEST_DIR=$package timeout "$limit" "${time_command[@]}" "$program"
    ) >"$log" 2>&1 </dev/null || code=$?
    sed -n "s|^test \(.*\) \.\.\. ok\$|$target_name \1|p" "$log" >>"$list.passed"
    sed -n "s|^test \(.*\) \.\.\. FAILED\$|$target_name \1|p" "$log" >>"$list.failed"
    if ! grep -q '^test result:' "$log"; then
        # It ended in the middle, or it has a `main` of its own.
        if [ "$code" = 0 ]; then
            echo "$target_name main" >>"$list.passed"
        else
            echo "$target_name ended with code $code, see $log" >>"$list.failed"
        fi
    elif ! grep -q "^test result: .* $(grep -c '^test .* \.\.\. ok$' "$log") passed" "$log"; then
        echo "$target_name printed across its list of tests, see $log" >>"$list.failed"
    fi
    local peak_kib
    peak_kib=$(tail -n 1 "$work/peak")
    case "$peak_kib" in
        '' | *[!0-9]*) ;;
        *) [ "$peak_kib" -le "$max_kib" ] || max_kib=$peak_kib ;;
    esac
}

# Builds and runs one suite with one heap; prints its line of the table.
run_suite() {
    local name=$1 version=$2 features=$3 heap=$4
    local logs=$work/logs/$name-$heap
    package=$work/packages/$name
    local list=$logs/tests
    rm -rf "$logs"
    mkdir -p "$logs"
    : >"$list.passed"
    : >"$list.failed"
    case "$features,$heap" in
        -,system) features='' ;;
        -,*) features=suite-heap/$heap ;;
        *,system) ;;
        *) features=$features,suite-heap/$heap ;;
    esac
    say "$name $version, $heap: building"
    cargo test --locked --no-run "${profile[@]}" --lib --tests --features "$features" \
        --manifest-path "$package/Cargo.toml" >"$logs/build" 2>&1 ||
        { tail -n 40 "$logs/build" >&2; fail "$name does not build with $heap"; }
    say "$name $version, $heap: running"
    local target_name program start=$EPOCHREALTIME max_kib=0
    while read -r target_name program; do
        # Paths below the working folder are printed without it.
        case "$program" in /*) ;; *) program=$PWD/$program ;; esac
        local log=$logs/${program##*/}.log
        run_program "$target_name" "$program" "$list" "$log"
        # The table is worth nothing if the heap is not in the program. Files that a feature leaves
        # out whole have no tests.
        local with_larder=no
        if grep -q larder_core "$program"; then with_larder=yes; fi
        case "$heap,$with_larder" in
            system,no | larder*,yes) ;;
            *)
                grep -q '^running 0 tests' "$log" ||
                    grep -q '^#\[global_allocator\]' "$package/$target_name" ||
                    fail "$program is not built with $heap"
                ;;
        esac
    done < <(sed -n 's|^ *Executable \(unittests \)\{0,1\}\([^ ]*\) (\(.*\))$|\2 \3|p' "$logs/build")
    local seconds peak='-'
    seconds=$(awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }')
    [ "$max_kib" = 0 ] || peak=$((max_kib / 1024))
    sort -o "$list.passed" "$list.passed"
    # Nothing could be compared, and nothing would be right.
    [ "$heap" != system ] || [ -s "$list.passed" ] || fail "no test of $name passes, see $logs"
    printf '%-18s %-8s %-14s %7d %7d %9s %9s\n' "$name" "$version" "$heap" \
        "$(wc -l <"$list.passed")" "$(wc -l <"$list.failed")" "$seconds" "$peak"
}

header() {
    printf '%-18s %-8s %-14s %7s %7s %9s %9s\n' crate version heap passed failed seconds 'peak MiB'
}
table=''
lost=''
worse=0
suite_count=0
for name in "${wanted[@]}"; do
    read -r _ version features < <(rows | grep "^$name ")
    suite_count=$((suite_count + 1))
    for heap in "${heaps[@]}"; do
        line=$(run_suite "$name" "$version" "$features" "$heap")
        say "$(header)"
        say "$line"
        table+=$line$'\n'
        logs=$work/logs/$name-$heap
        if [ "$heap" != system ]; then
            missing=$(comm -23 "$work/logs/$name-system/tests.passed" "$logs/tests.passed")
            if [ -n "$missing" ]; then
                worse=$((worse + 1))
                lost+="$name with $heap: $(wc -l <<<"$missing") pass with the system's allocator only, logs in $logs"$'\n'
                lost+=$(sed -n 1,10p <<<"$missing")$'\n'
            fi
        fi
        if [ -s "$logs/tests.failed" ]; then
            lost+="$name with $heap, failed:"$'\n'$(cat "$logs/tests.failed")$'\n'
        fi
    done
done

echo
echo "$(rustc -V), $(nproc) cores, built ${profile[*]:-with debug assertions}"
header
printf '%s' "$table"
printf '%s' "$lost"
if [ "$worse" -gt 0 ]; then
    echo "WRONG: in $worse cases a test passes with the system's allocator and not with Larder"
    exit 1
fi
echo "right: in $suite_count suites each test that passes with the system's allocator passes with ${heaps[*]:1}"
