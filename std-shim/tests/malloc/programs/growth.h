// What a program has no more of in the last quarter of many rounds than in the first half of them: pages in memory, and
// Larder's heaps where it has them. The most of the half and the least of the quarter, since how many threads overlap
// varies from round to round, and so does how many heaps cache blocks.
#pragma once
#include "check.h"
#include "larder.h"
#include <fcntl.h>
#include <limits.h>

#pragma weak larder_stats

// What the system and the heap keep now and then: up to 2,800 KiB where eight of these programs share two processors. In
// a quarter of 1,200 rounds, 14 KiB a round.
enum { SLACK_KIB = 4096 };

static inline long resident_kib(void) {
    char text[100] = {0};
    int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    CHECK(file >= 0 && read(file, text, sizeof text - 1) > 0);
    close(file);
    return atol(strchr(text, ' ')) * (sysconf(_SC_PAGESIZE) / 1024);
}

// Told after each round, from 1 on. At most `heaps` threads are at work at once, the main thread among them.
static inline void look_at_growth(int round, int all, uint64_t heaps) {
    static long most_kib, least_kib = LONG_MAX;
    int first = (all + 1) / 2, last = all - all / 4;
    if (round <= first || round >= last) {
        long now = resident_kib();
        if (round <= first && now > most_kib) most_kib = now;
        if (round >= last && now < least_kib) least_kib = now;
    }
    if (round < all) return;
    larder_counters stats = {0};
    if (larder_stats) larder_stats(&stats, sizeof stats);
    if (stats.heaps > heaps) printf("%lu heaps for %lu threads\n", (long)stats.heaps, (long)heaps);
    if (least_kib > most_kib + SLACK_KIB)
        printf("at most %ld KiB in %d rounds, at least %ld in rounds %d to %d\n", most_kib, first, least_kib, last, all);
}
