// Threads that only compute end in such numbers that the C library frees what it had for them while it holds the lock
// that a new thread takes.
#include "check.h"
#include <pthread.h>

enum { THREADS = 200 };

static void *compute(void *nothing) {
    volatile double sum = 0;
    for (int i = 0; i < 2000; i++) sum += i;
    return nothing;
}

int main(int argc, char **argv) {
    static pthread_t threads[THREADS];
    for (int wave = rounds(argc, argv); wave > 0; wave--) {
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, compute, NULL) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
    puts("all joined");
    return 0;
}
