// Threads come and go, round after round: `free`, such as only free what the main thread had; `compute`, such as have nothing
// to do with the heap; `work`, such as allocate and free.
#include "growth.h"
#include <pthread.h>

enum { THREADS = 4, BLOCKS = 100 };

static void *blocks[THREADS][BLOCKS];

static void *only_free(void *all) {
    for (int i = 0; i < BLOCKS; i++) free(((void **)all)[i]);
    return NULL;
}

static void *compute(void *nothing) {
    volatile double sum = 0;
    for (int i = 0; i < 500; i++) sum += i;
    return nothing;
}

static pthread_barrier_t all_hold;

// Holds its blocks until the other threads hold theirs: each round needs as much.
static void *work(void *nothing) {
    void *held[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((held[i] = malloc((size_t)i * i * 7)) != NULL);
        memset(held[i], 1, (size_t)i * i * 7);
    }
    pthread_barrier_wait(&all_hold);
    for (int i = 0; i < BLOCKS; i++) free(held[i]);
    return nothing;
}

static void fill(void) {
    for (int i = 0; i < THREADS * BLOCKS; i++) {
        size_t bytes = i % 50 == 0 ? 200000 : (size_t)i * 7 % 3000 + 1;
        void *block = malloc(bytes);
        CHECK(block);
        memset(block, 1, bytes < 5000 ? bytes : 5000);
        blocks[i % THREADS][i / THREADS] = block;
    }
}

int main(int argc, char **argv) {
    int all = rounds(argc, argv), frees = strcmp(argv[2], "free") == 0;
    void *(*run)(void *) = frees ? only_free : strcmp(argv[2], "work") == 0 ? work : compute;
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&all_hold, NULL, THREADS) == 0);
    for (int round = 1; round <= all; round++) {
        if (frees) fill();
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run, blocks[i]) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        look_at_growth(round, all, THREADS + 1);
    }
    puts("all joined");
    return 0;
}
