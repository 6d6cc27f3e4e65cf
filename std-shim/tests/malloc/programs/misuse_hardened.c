// What a hardened or checking heap finds, one by one: the first argument says what is done, the second to how long a block. The
// block's address is said first.
#include "check.h"
#include <malloc.h>
#include <pthread.h>

void free_sized(void *block, size_t bytes);
void free_aligned_sized(void *block, size_t align, size_t bytes);

static char *block, *other;
static size_t bytes;

static void *free_it(void *nothing) {
    free(block);
    return nothing;
}

// Blocks that come and go until those freed before have left the quarantine.
static void pass_time(void) {
    for (int i = 0; i < 70000; i++) free(malloc(i % 7 == 0 ? 20000 : 300));
}

static void in_a_thread(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, free_it, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void later(const char *what) {
    if (!strcmp(what, "twice")) free(block), free(block);
    if (!strcmp(what, "twice-others-between")) free(block), free(other), free(malloc(bytes)), free(block);
    if (!strcmp(what, "twice-in-threads")) in_a_thread(), free(block);
    if (!strcmp(what, "twice-later")) free(block), pass_time(), free(block);
    if (!strcmp(what, "realloc-freed")) free(block), other = realloc(block, bytes + 1);
}

static void inside(const char *what) {
    char local[64] __attribute__((aligned(16)));
    static char own[64] __attribute__((aligned(16)));
    if (!strcmp(what, "inside-8")) free(block + 8);
    if (!strcmp(what, "inside-1")) free(block + 1);
    if (!strcmp(what, "inside-page")) free(block + 4096);
    if (!strcmp(what, "stack")) free(local);
    if (!strcmp(what, "static")) free(own);
    if (!strcmp(what, "number")) free((void *)16);
    if (!strcmp(what, "realloc-inside")) other = realloc(block + 8, bytes);
}

static void layouts(const char *what) {
    if (!strcmp(what, "free_sized")) free_sized(block, bytes + 1);
    if (!strcmp(what, "free_aligned_sized-bytes")) free_aligned_sized(aligned_alloc(64, bytes), 64, bytes - 1);
    if (!strcmp(what, "free_aligned_sized-align")) free_aligned_sized(aligned_alloc(64, bytes), 32, bytes);
}

static void writes(const char *what) {
    if (!strcmp(what, "past-zero")) block[bytes] = 0, free(block);
    if (!strcmp(what, "past-last")) {
        // The last byte before the next block, as far as the heap's own lengths say.
        size_t granted = bytes < 16 ? 16 : bytes;
        while (block[granted] == block[bytes]) granted++;
        block[granted - 1] ^= 1, free(block);
    }
    if (!strcmp(what, "past-realloc")) block[bytes] ^= 1, other = realloc(block, bytes + 1);
    if (!strcmp(what, "past-realloc-away")) block[bytes] ^= 1, other = realloc(block, 4 * bytes + 100);
    if (!strcmp(what, "past-not-freed")) block[bytes] = 0, other = malloc(100);
    if (!strcmp(what, "past-by-another-allocation")) {
        size_t all = malloc_usable_size(block) + 1, last = all < 8000000 ? all : 8000000;
        // Another byte than stands there, which differs from block to block.
        memset(block + all - last, block[all - 1] ^ 1, last), free(block);
    }
    if (!strcmp(what, "freed-soon")) free(block), block[0] ^= 1, other = malloc(100);
    if (!strcmp(what, "freed-later")) free(block), block[bytes - 1] ^= 1, pass_time();
    if (!strcmp(what, "freed-in-slack")) free(block), block[bytes] ^= 1, pass_time();
}

// What is found where the heap is checking.
static void more(const char *what) {
    if (!strcmp(what, "before-1")) block[-1] ^= 1, free(block);
    if (!strcmp(what, "before-16")) block[-16] = 0, free(block);
    if (!strcmp(what, "before-realloc")) block[-1] ^= 1, other = realloc(block, bytes + 1);
    if (!strcmp(what, "before-not-freed")) block[-1] = 0, other = malloc(100);
    if (!strcmp(what, "freed-zero")) free(block), block[bytes / 2] = 0, pass_time();
}

// A block in the plain heap's list is written: its link is turned to a block in use, a byte of it is changed, or all of
// the block.
static void bend(const char *what) {
    if (!strcmp(what, "early-bent")) what = "list-bent";
    if (strncmp(what, "list-", 5)) return;
    size_t front = !strcmp(getenv("LARDER_MODE"), "checking") ? 16 : 0;
    free(block), pass_time();
    char *start = block - front;
    if (!strcmp(what, "list-bent")) *(char **)start = other - front;
    if (!strcmp(what, "list-first-byte")) start[0] ^= 0x40;
    if (!strcmp(what, "list-last-byte")) start[7] ^= 1;
    if (!strcmp(what, "list-overwritten")) memset(start, 'x', bytes + front);
    for (int i = 0; i < 1000; i++) CHECK(malloc(bytes));
}

// Allocates before the heap can know that it is hardened: its links stay plain.
static void allocate_early(int argc, char **argv, char **environment) {
    if (argc < 2 || strcmp(argv[1], "early-bent")) return;
    environ = NULL;
    other = malloc(100);
    environ = environment;
}

__attribute__((section(".preinit_array"), used)) static void (*early)(int, char **, char **) = allocate_early;

static void nothing(const char *what) {
    if (!strcmp(what, "nothing-read")) printf("%d\n", *(volatile char *)malloc(0));
    if (!strcmp(what, "nothing-write")) *(volatile char *)malloc(0) = 1;
    if (!strcmp(what, "nothing-twice")) block = malloc(0), free(block), free(block);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    setvbuf(stdout, NULL, _IONBF, 0);
    bytes = strtoul(argv[2], NULL, 10);
    block = malloc(bytes);
    other = malloc(bytes);
    CHECK(block && other);
    printf("%p\n", (void *)block);
    size_t touched = bytes < 8000000 ? bytes : 8000000;
    memset(block, 'a', touched);
    memset(other, 'b', touched);
    later(argv[1]);
    inside(argv[1]);
    layouts(argv[1]);
    writes(argv[1]);
    more(argv[1]);
    bend(argv[1]);
    nothing(argv[1]);
    puts("went on");
    return 0;
}
