// Threads that are to be cancelled allocate and free: they end where they ask for it, never inside.
#include "check.h"
#include <malloc.h>
#include <pthread.h>

enum { THREADS = 4, LONG = 16 << 20 };

static void *work(void *got_there) {
    CHECK(pthread_cancel(pthread_self()) == 0);
    for (int i = 0; i < 9; i++) {
        exercise();
        // Pages that move, as something lies behind them.
        char *block = malloc(4 << 20), *behind = malloc(4 << 20);
        CHECK(block && behind);
        memset(block, 1, 4 << 20);
        CHECK((block = realloc(block, LONG << i % 3)) != NULL && is_filled(block, 1, 4 << 20));
        free(behind);
        free(block);
        malloc_trim(0);
    }
    *(int *)got_there = 1;
    pthread_testcancel();
    wrong(__FILE__, __LINE__, "it was not cancelled");
    return NULL;
}

int main(int argc, char **argv) {
    for (int i = 0; i < rounds(argc, argv); i++) {
        pthread_t threads[THREADS];
        int got_there[THREADS] = {0};
        for (int j = 0; j < THREADS; j++) CHECK(pthread_create(&threads[j], NULL, work, &got_there[j]) == 0);
        for (int j = 0; j < THREADS; j++) {
            void *result;
            CHECK(pthread_join(threads[j], &result) == 0 && result == PTHREAD_CANCELED && got_there[j]);
        }
    }
    puts("cancelled where they asked");
    return 0;
}
