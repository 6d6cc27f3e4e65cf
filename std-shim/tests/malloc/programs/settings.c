// The settings of `larder.h` that change at run time, seen by what the heap has returned to the system.
#include "check.h"
#include "larder.h"
#include <dirent.h>

enum { MIB = 1 << 20, BLOCKS = 128, ROUNDS = 20000 };

static larder_counters numbers(void) {
    larder_counters now = {0};
    CHECK(larder_stats(&now, sizeof now) == sizeof now);
    return now;
}

static int threads(void) {
    int count = -2; // `.` and `..`
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

// Allocates and frees what no thread caches.
static void call(void) {
    void *block = malloc(20 * MIB);
    CHECK(block);
    free(block);
}

static void *held[BLOCKS];

// Leaves 64 MiB in holes of 1 MiB between blocks of as many bytes.
static void hold(void) {
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((held[i] = malloc(MIB)) != NULL);
        memset(held[i], i, MIB);
    }
    for (int i = 0; i < BLOCKS; i += 2) free(held[i]);
}

static void release(void) {
    for (int i = 1; i < BLOCKS; i += 2) free(held[i]);
}

// Grows by blocks for which no hole is long enough. Returns how many bytes went back to the system meanwhile.
static uint64_t grow(void) {
    void *blocks[20];
    uint64_t before = numbers().purged_bytes;
    for (int i = 0; i < 20; i++) {
        CHECK((blocks[i] = malloc(20 * MIB)) != NULL);
        usleep(1000); // Where the heap makes up for growth, it pauses in between.
    }
    uint64_t after = numbers().purged_bytes;
    for (int i = 0; i < 20; i++) free(blocks[i]);
    return after - before;
}

// Calls the heap until it has returned this many bytes.
static void wait_for(uint64_t bytes) {
    uint64_t before = numbers().purged_bytes;
    for (int round = 0; numbers().purged_bytes < before + bytes; round++) {
        CHECK(round < ROUNDS);
        call();
        usleep(1000);
    }
}

// Returns nothing from now on, and waits until the heap's own thread has ended.
static void keep_all(void) {
    CHECK(larder_set_purge_after(LARDER_NEVER) == 0);
    for (int round = 0; threads() > 1; round++) {
        CHECK(round < ROUNDS);
        hold();
        release();
        usleep(1000);
    }
}

int main(void) {
    CHECK(larder_set_memory_limit(0) == EINVAL);
    for (int round = 0; round < 2; round++) {
        keep_all();
        hold();
        CHECK(grow() == 0 && grow() == 0);
        CHECK(numbers().retained_bytes >= 60 * MIB && threads() == 1);
        CHECK(larder_set_purge_after(0) == 0);
        wait_for(60 * MIB);
        release();
    }
    keep_all();
    hold();
    CHECK(larder_set_memory_limit(100 * MIB) == 0);
    wait_for(40 * MIB);
    CHECK(larder_set_memory_limit(LARDER_NO_LIMIT) == 0);
    call();
    release();
    hold();
    CHECK(numbers().retained_bytes >= 60 * MIB && grow() == 0);
    puts("settings");
    return 0;
}
