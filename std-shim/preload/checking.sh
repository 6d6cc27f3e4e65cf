#!/usr/bin/env bash
# Which misuse of the heap ends a program, and what looking for it costs: liblarder.so in its modes, beside glibc as it is
# and with its own checks.
#
#   std-shim/preload/checking.sh [ROUNDS] [NAME=LIBRARY…]    libraries of other allocators, to be preloaded beside these
#
# First, of each misuse of std-shim/tests/malloc/programs/misuse_hardened.c, but those of larder's own lists, how many of
# five lengths end the program by a report or a fault. Then CPU seconds and peak MiB of five workloads, medians of ROUNDS (3), alternated; `!` says that a
# workload said something else than on glibc. Needs GNU time, python3, perl, sqlite3 and gcc.
set -euo pipefail
cd "$(dirname "$0")/../.."
rounds=${1:-3}
shift || true
target=${CARGO_TARGET_DIR:-target}/malloc
cargo build --quiet --release --manifest-path std-shim/preload/Cargo.toml --target-dir "$target"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$target/release/liblarder.so" "$work"
programs=$PWD/std-shim/tests/malloc/programs
larder="LD_PRELOAD=$work/liblarder.so"
debug=/usr/lib/$(uname -m)-linux-gnu/libc_malloc_debug.so.0
declare -A modes=(
    [glibc]=LANG=C
    [perturb]=GLIBC_TUNABLES=glibc.malloc.perturb=165
    [check]="LD_PRELOAD=$debug GLIBC_TUNABLES=glibc.malloc.check=3"
    [larder]=$larder
    [guard]="$larder LARDER_GUARD=1000"
    [guard-all]="$larder LARDER_GUARD=1"
    [hardened]="$larder LARDER_MODE=hardened"
    [checking]="$larder LARDER_MODE=checking"
    [no-stacks]="$larder LARDER_MODE=checking LARDER_STACK_FRAMES=0"
)
others=()
for other in "$@"; do
    others+=("${other%%=*}")
    modes[${other%%=*}]="LD_PRELOAD=${other#*=}"
done

# What a C library may lack.
echo '#include <unistd.h>
void none(void) { (void)!write(1, "no such function\n", 17), _exit(1); }
void free_sized(void) { none(); } void free_aligned_sized(void) { none(); }' |
    gcc -shared -fPIC -w -x c - -o "$work/libsized.so"
gcc -std=gnu11 -O1 -fno-builtin -w -pthread -I"$programs" "$programs/misuse_hardened.c" \
    "$work/libsized.so" -o "$work/misuse"
misuses=$(grep -o '!strcmp(what, "[^"]*")' "$programs/misuse_hardened.c" | cut -d'"' -f2 | grep -v list- | grep -v early-)
order=(glibc perturb check "${others[@]}" larder guard-all hardened checking)
printf '%-28s' misuse
printf '%10s' "${order[@]}"
echo
for misuse in $misuses; do
    printf '%-28s' "$misuse"
    for mode in "${order[@]}"; do
        found=0
        for length in 8 24 1000 4000 40000; do
            # shellcheck disable=SC2086
            said=$(bash -c "env ${modes[$mode]} timeout 20 $work/misuse $misuse $length || true" 2>&1) || true
            case $said in
                *'no such function'*) found=- && break ;;
                *'went on'*) ;;
                *) found=$((found + 1)) ;;
            esac
        done
        printf '%10s' "$found"
    done
    echo
done

cat > "$work/pairs.c" <<'PROGRAM'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    static char *kept[1000];
    unsigned long random = 1, sum = 0;
    for (int i = 0; i < 2000000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        char **slot = &kept[(random >> 33) % 1000];
        free(*slot);
        size_t bytes = 1 + (random >> 43) % (i % 100 ? 500 : 20000);
        *slot = malloc(bytes);
        memset(*slot, i, bytes < 64 ? bytes : 64);
        sum += (unsigned char)**slot;
    }
    printf("%lu\n", sum);
}
PROGRAM
gcc -O2 -fno-builtin "$work/pairs.c" -o "$work/pairs"
declare -A workloads=(
    [pairs]="$work/pairs"
    [python]="PYTHONMALLOC=malloc python3 $PWD/std-shim/preload/program.py 30000"
    [perl]="perl $programs/script.pl"
    [sqlite]="sqlite3 -bail :memory: '.read $programs/script.sql'"
    [gcc]="gcc -O2 -w -S -o - -x c $programs/contract.c"
)
median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
order=(glibc perturb check "${others[@]}" larder guard hardened checking no-stacks)
printf '\n%-10s' 'CPU s/MiB'
printf '%14s' "${order[@]}"
echo
for workload in pairs python perl sqlite gcc; do
    rm -f "$work"/*.times
    for _ in $(seq "$rounds"); do
        for mode in "${order[@]}"; do
            # What measures has the heap that it always has.
            # shellcheck disable=SC2086
            /usr/bin/time -o "$work/time" -f '%U %S %M' env ${modes[$mode]} bash -c "${workloads[$workload]}" \
                > "$work/$mode.output" 2> /dev/null || true
            tail -1 "$work/time" >> "$work/$mode.times"
        done
    done
    printf '%-10s' "$workload"
    for mode in "${order[@]}"; do
        cpu=$(awk '{ print $1 + $2 }' "$work/$mode.times" | median)
        peak=$(awk '{ print $3 / 1024 }' "$work/$mode.times" | median)
        same=$(cmp -s "$work/glibc.output" "$work/$mode.output" && echo ' ' || echo '!')
        printf '%8.2f/%4.0f%s' "$cpu" "$peak" "$same"
    done
    echo
done
