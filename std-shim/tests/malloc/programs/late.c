// Threads that come to the heap when nobody tells of their end any more: detached ones, for which the C library frees
// what it had, and ones whose first allocation is made by the last round of the destructors of keys. None of them leaves
// a heap behind.
#include "check.h"
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

enum { THREADS = 32 };

static pthread_key_t key;
static pid_t threads[THREADS];
static int are_all;

static void end(void *left) {
    uintptr_t rounds = (uintptr_t)left;
    if (rounds > 1) {
        CHECK(pthread_setspecific(key, (void *)(rounds - 1)) == 0);
        return;
    }
    void *block = malloc(100);
    CHECK(block);
    memset(block, 1, 100);
    free(block);
}

static void *run(void *number) {
    uintptr_t i = (uintptr_t)number;
    if (i % 2) CHECK(pthread_setspecific(key, (void *)(uintptr_t)PTHREAD_DESTRUCTOR_ITERATIONS) == 0);
    __atomic_store_n(&threads[i], (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    while (!__atomic_load_n(&are_all, __ATOMIC_ACQUIRE)) usleep(10);
    return NULL;
}

int main(int argc, char **argv) {
    pthread_attr_t detached;
    // The heap's key is older than the program's.
    exercise();
    CHECK(pthread_key_create(&key, end) == 0);
    CHECK(pthread_attr_init(&detached) == 0);
    CHECK(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) == 0);
    for (int wave = rounds(argc, argv); wave > 0; wave--) {
        pthread_t unused;
        are_all = 0;
        for (int i = 0; i < THREADS; i++) {
            threads[i] = 0;
            CHECK(pthread_create(&unused, &detached, run, (void *)(uintptr_t)i) == 0);
        }
        for (int i = 0; i < THREADS; i++) {
            while (__atomic_load_n(&threads[i], __ATOMIC_ACQUIRE) == 0) usleep(10);
        }
        __atomic_store_n(&are_all, 1, __ATOMIC_RELEASE);
        for (int i = 0; i < THREADS; i++) {
            while (syscall(SYS_tgkill, getpid(), threads[i], 0) == 0) usleep(10);
        }
    }
    // As many as threads that were at work at once.
    size_t heaps = mallinfo2().ordblks;
    if (heaps > THREADS + 1) printf("%zu heaps\n", heaps);
    puts("all ended");
    return 0;
}
