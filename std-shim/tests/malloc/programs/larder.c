// What `larder.h` adds: numbers, steps, heaps as values. C, and C++ too.
#include "check.h"
#include "larder.h"

static larder_counters numbers(void) {
    larder_counters stats = {0};
    CHECK(larder_stats(&stats, sizeof stats) >= sizeof stats);
    return stats;
}

static void count(void) {
    exercise();
    uint64_t before = numbers().live_bytes;
    void *block = malloc(5000000);
    memset(block, 1, 5000000);
    larder_counters with = numbers();
    CHECK(with.live_bytes >= before + 5000000 && with.committed_bytes >= with.live_bytes);
    CHECK(with.reserved_bytes >= with.committed_bytes && with.heaps > 0);
    free(block);
    CHECK(numbers().live_bytes < before + 1000000);
    larder_trim();
    CHECK(numbers().purged_bytes >= 4000000 && numbers().retained_bytes < with.committed_bytes);
    // An older program knows of fewer numbers, and no byte behind them is written.
    larder_counters few;
    memset(&few, 0xee, sizeof few);
    CHECK(larder_stats(&few, 16) == sizeof few && is_filled((char *)&few + 16, 0xee, sizeof few - 16));
    CHECK(larder_stats(NULL, 0) == sizeof few);
}

static void steps(void) {
    larder_step_end();
    for (int round = 0; round < 20; round++) {
        char *blocks[10], *kept;
        larder_step_begin((uint64_t)(round % 2));
        larder_step_begin(7);
        for (int i = 0; i < 10; i++) {
            CHECK((blocks[i] = (char *)malloc(50000 + (size_t)i * 30000)) != NULL);
            memset(blocks[i], i, 50000);
        }
        CHECK((blocks[3] = (char *)realloc(blocks[3], 900000)) != NULL);
        for (int i = 0; i < 10; i++) CHECK(is_filled(blocks[i], i, 50000));
        for (int i = 0; i < 10; i++) free(blocks[i]);
        kept = (char *)calloc(1, 100000);
        CHECK(kept && is_filled(kept, 0, 100000));
        memset(kept, 9, 100000);
        larder_step_end();
        larder_step_end();
        exercise();
        CHECK(is_filled(kept, 9, 100000));
        free(kept);
    }
    CHECK(numbers().steps >= 20 && numbers().known_steps > 5);
    larder_step_end();
}

static void heaps(void) {
    larder_heap *heap = larder_heap_new();
    CHECK(heap && larder_heap_live_bytes(heap) == 0);
    for (int round = 0; round < 3; round++) {
        for (size_t bytes = 0; bytes < 400000; bytes += bytes / 3 + 1) {
            for (size_t align = 1; align <= 4096; align *= 8) {
                char *block = (char *)larder_heap_alloc(heap, bytes, align);
                CHECK(block && is_aligned(block, align));
                memset(block, 5, bytes);
                size_t more = bytes * 2 + 10;
                CHECK((block = (char *)larder_heap_resize(heap, block, bytes, align, more)) != NULL);
                CHECK(is_aligned(block, align) && is_filled(block, 5, bytes));
                CHECK((block = (char *)larder_heap_resize(heap, block, more, align, bytes / 2)) != NULL);
                CHECK(is_filled(block, 5, bytes / 2));
                if (bytes % 3) larder_heap_free(heap, block, bytes / 2, align);
            }
        }
        CHECK(larder_heap_live_bytes(heap) > 0);
        larder_heap_reset(heap);
        CHECK(larder_heap_live_bytes(heap) == 0);
    }
    void *block = larder_heap_resize(heap, NULL, 0, 16, 100);
    CHECK(block);
    errno = 0;
    CHECK(larder_heap_alloc(heap, 100, 3) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(larder_heap_alloc(heap, 100, 0) == NULL && errno == EINVAL);
    errno = 0;
    CHECK(larder_heap_alloc(heap, SIZE_MAX, 16) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(larder_heap_alloc(heap, PTRDIFF_MAX, 1) == NULL && errno == ENOMEM);
    errno = 0;
    CHECK(larder_heap_resize(heap, block, 100, 16, SIZE_MAX - 5) == NULL && errno == ENOMEM);
    larder_heap_free(heap, NULL, 0, 16);
    errno = 77;
    larder_heap_free(heap, block, 100, 16);
    larder_heap_delete(heap);
    larder_heap_delete(NULL);
    CHECK(errno == 77);
}

int main(void) {
    count();
    steps();
    heaps();
    puts("numbers, steps, heaps");
    return 0;
}
