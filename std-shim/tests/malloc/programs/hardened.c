// What a hardened heap promises of blocks that are used well.
#include "check.h"
#include <malloc.h>

void free_sized(void *block, size_t bytes);
void free_aligned_sized(void *block, size_t align, size_t bytes);

static const size_t sizes[] = {1, 7, 8, 15, 16, 17, 100, 1024, 4096, 5000, 130000, 131072, 200000, 262144, 3000000, 40000000};
enum { COUNT = sizeof sizes / sizeof *sizes };

// Fresh blocks read as zero, however often their memory was used.
static void fresh_blocks_are_zero(void) {
    for (int round = 0; round < 300; round++)
        for (int i = 0; i < COUNT - (round % 50 ? 3 : 0); i++) {
            char *block = round % 2 ? malloc(sizes[i]) : calloc(1, sizes[i]);
            CHECK(block && is_aligned(block, 16) && is_filled(block, 0, sizes[i]));
            memset(block, 'x', sizes[i]);
            free_sized(block, sizes[i]);
        }
}

static int is_checking;

static void freed_blocks_are_zero_or_filled(void) {
    for (int i = 0; i < COUNT && sizes[i] < 1000000; i++) {
        char *block = malloc(sizes[i]);
        memset(block, 'x', sizes[i]);
        free(block);
        CHECK(is_filled(block, is_checking ? block[0] : 0, sizes[i]));
        CHECK(!is_checking || (block[0] && block[0] != 'x'));
        // Memory that was freed is not used again at once.
        CHECK((char *)malloc(sizes[i]) != block);
    }
}

static void every_byte_asked_for_is_usable(void) {
    for (int i = 0; i < COUNT; i++)
        for (size_t align = 1; align <= 1 << 16; align *= 4) {
            char *block = aligned_alloc(align, sizes[i]);
            CHECK(block && is_aligned(block, align) && malloc_usable_size(block) == sizes[i]);
            memset(block, 'x', sizes[i]);
            free_aligned_sized(block, align, sizes[i]);
            CHECK(malloc_usable_size(block) == 0);
        }
}

static void blocks_of_nothing_are_apart(void) {
    enum { MANY = 3000 };
    static void *blocks[MANY];
    for (int round = 0; round < 500; round++) {
        for (int i = round % 10 * 300; i < MANY; i++) {
            CHECK((blocks[i] = i % 2 ? malloc(0) : calloc(0, 8)) && malloc_usable_size(blocks[i]) == 0);
            CHECK(i == 0 || blocks[i] != blocks[i - 1]);
        }
        for (int i = round % 10 * 300; i < MANY; i++) {
            if (i % 3) free_sized(blocks[i], 0);
            else free(realloc(blocks[i], 10));
        }
    }
    free_aligned_sized(aligned_alloc(64, 0), 64, 0);
}

static void blocks_grow_and_shrink(void) {
    size_t bytes = 10;
    char *block = calloc(1, bytes);
    for (int i = 0; i < 3000; i++) {
        size_t next = i % 3 ? bytes + i : bytes / 2 + 1;
        size_t both = next < bytes ? next : bytes;
        memset(block, i, bytes);
        CHECK((block = realloc(block, next)) && is_filled(block, i, both) && malloc_usable_size(block) == next);
        bytes = next;
    }
    free(block);
}

int main(void) {
    is_checking = !strcmp(getenv("LARDER_MODE"), "checking");
    fresh_blocks_are_zero();
    freed_blocks_are_zero_or_filled();
    every_byte_asked_for_is_usable();
    blocks_of_nothing_are_apart();
    blocks_grow_and_shrink();
    CHECK(malloc((size_t)-2) == NULL && malloc((size_t)-1) == NULL && malloc(PTRDIFF_MAX) == NULL);
    puts("all were as they should be");
    return 0;
}
