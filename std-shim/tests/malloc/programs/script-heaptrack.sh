# A profiler counts the allocations of a Perl that makes 20,000 strings.
set -e
# Newer ones show the record in a window unless they are told not to.
only=$(heaptrack --help 2>&1 | grep -o -- --record-only | head -n 1) || true
# shellcheck disable=SC2086
heaptrack $only -o record perl -e '@all = map { "x" x $_ } 1 .. 20000; print scalar @all, "\n"' > log 2>&1 \
    || { cat log >&2; exit 1; }
grep -x 20000 log
calls=$(heaptrack_print record.* 2> /dev/null | sed -n 's/^calls to allocation functions: \([0-9]*\).*/\1/p')
[ "$calls" -ge 20000 ] && echo 'all strings were counted'
