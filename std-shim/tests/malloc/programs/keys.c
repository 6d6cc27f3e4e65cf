// Keys older than the heap's: more than the C library has room for without allocating, or all there are. The
// second argument says how many.
#include "check.h"
#include <pthread.h>

enum { AGAIN = 3, MOST = 2000 };

static pthread_key_t keys[MOST];
static int count, ends;

// Sets itself again, so that the heap's end of thread is not the last thing of a thread.
static void end(void *value) {
    exercise();
    int left = *(int *)value, key = ((int *)value)[1];
    free(value);
    __atomic_add_fetch(&ends, 1, __ATOMIC_RELAXED);
    if (left == 0) return;
    int *next = malloc(100);
    next[0] = left - 1;
    next[1] = key;
    CHECK(pthread_setspecific(keys[key], next) == 0);
}

__attribute__((constructor(101))) static void before_all(int argc, char **argv) {
    int wanted = argc > 2 ? atoi(argv[2]) : 40;
    while (count < wanted && count < MOST && pthread_key_create(&keys[count], end) == 0) count++;
}

static void *work(void *argument) {
    for (int i = 0; i < count; i += 13) {
        int *value = malloc(100);
        value[0] = i % (AGAIN + 1);
        value[1] = i;
        CHECK(pthread_setspecific(keys[i], value) == 0);
    }
    exercise();
    return argument;
}

int main(int argc, char **argv) {
    int expected = 0, waves = rounds(argc, argv);
    CHECK(count >= 40);
    for (int wave = 0; wave < waves; wave++) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        for (int i = 0; i < count; i += 13) expected += 4 * (i % (AGAIN + 1) + 1);
    }
    CHECK(ends == expected);
    exercise();
    puts("all ended");
    return 0;
}
