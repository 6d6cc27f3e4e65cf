// Threads allocate, change and free at random, and free what others allocated. All contents are looked at.
#include "check.h"
#include <malloc.h>
#include <pthread.h>

enum { THREADS = 4, SHARED = 512, OWN = 256 };

typedef struct {
    size_t bytes;
    unsigned fill;
    char data[];
} Block;

static Block *shared[SHARED];
static long operations;

static void make_whole(Block *block, size_t bytes, unsigned fill) {
    block->bytes = bytes;
    block->fill = fill;
    memset(block->data, (int)fill, bytes);
}

static void drop(Block *block) {
    if (block) CHECK(is_filled(block->data, (int)block->fill, block->bytes));
    free(block);
}

static unsigned long next(unsigned long *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state >> 11;
}

static size_t length(unsigned long *state) {
    unsigned long kind = next(state) % 1000;
    if (kind == 0) return next(state) % 2000000;
    if (kind < 10) return next(state) % 130000;
    return kind < 200 ? next(state) % 4000 : next(state) % 200;
}

static Block *make(unsigned long *state) {
    size_t bytes = length(state);
    Block *block = NULL;
    switch (next(state) % 8) {
    case 0:
        CHECK((block = calloc(1, sizeof(Block) + bytes)) && is_filled(block, 0, sizeof(Block) + bytes));
        break;
    case 1: {
        size_t align = (size_t)16 << next(state) % 9;
        CHECK(posix_memalign((void **)&block, align, sizeof(Block) + bytes) == 0 && is_aligned(block, align));
        break;
    }
    default:
        CHECK((block = malloc(sizeof(Block) + bytes)) && is_aligned(block, 16));
    }
    make_whole(block, bytes, (unsigned)next(state) & 0xff);
    return block;
}

static void *work(void *argument) {
    unsigned long state = 0x9e3779b97f4a7c15ul * ((unsigned long)argument + 1);
    Block *own[OWN] = {0};
    for (long i = 0; i < operations; i++) {
        Block **place = &own[next(&state) % OWN];
        switch (next(&state) % 4) {
        case 0:
            drop(*place);
            *place = make(&state);
            break;
        case 1: // Another thread's block comes, one of ours goes.
            *place = __atomic_exchange_n(&shared[next(&state) % SHARED], *place, __ATOMIC_ACQ_REL);
            break;
        case 2:
            drop(*place);
            *place = NULL;
            break;
        default:
            if (*place) {
                size_t old = (*place)->bytes, bytes = length(&state);
                Block *block = realloc(*place, sizeof(Block) + bytes);
                CHECK(block && is_filled(block->data, (int)block->fill, old < bytes ? old : bytes));
                make_whole(block, bytes, (unsigned)next(&state) & 0xff);
                *place = block;
            }
        }
    }
    for (int i = 0; i < OWN; i++) drop(own[i]);
    return NULL;
}

int main(int argc, char **argv) {
    operations = 1000L * rounds(argc, argv);
    // Twice: the second threads take over what the first left.
    for (int wave = 0; wave < 2; wave++) {
        pthread_t threads[THREADS];
        for (long i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + wave * 10)) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    for (int i = 0; i < SHARED; i++) drop(shared[i]);
    puts("all were whole");
    return 0;
}
