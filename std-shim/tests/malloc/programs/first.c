// A library that is loaded before a program: its constructor allocates, and what it registers for forks
// allocates, too.
#include "check.h"
#include <pthread.h>

// Each thread's own: the C library runs the handlers of several forks at once.
static __thread char *kept;

static void before_fork(void) {
    exercise();
    kept = realloc(kept, 3000);
}

static void after_fork(void) {
    exercise();
    free(kept);
    kept = malloc(100);
}

__attribute__((constructor)) static void begin(void) {
    CHECK(pthread_atfork(before_fork, after_fork, after_fork) == 0);
    CHECK((kept = malloc(100)) != NULL);
    exercise();
    // Another time, now that the heap has its own handlers.
    CHECK(pthread_atfork(before_fork, after_fork, after_fork) == 0);
}
