// A program that allocates before main, and a chain of blocks that ends after it.
#include "check.h"
#include <pthread.h>

static char *early[100];
static int made_by_thread, stop;

static void *in_thread(void *nothing) {
    exercise();
    made_by_thread = 1;
    return nothing;
}

__attribute__((constructor(101))) static void before_all(void) {
    for (int i = 0; i < 100; i++) {
        CHECK((early[i] = malloc((size_t)i * 500)) != NULL);
        memset(early[i], i, (size_t)i * 500);
    }
    exercise();
}

__attribute__((constructor(102))) static void with_thread(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

__attribute__((destructor(101))) static void after_all(void) {
    exercise();
    for (int i = 0; i < 50; i++) {
        CHECK(is_filled(early[i], i, (size_t)i * 500));
        free(early[i]);
    }
    CHECK(write(1, "after all\n", 10) == 10);
}

static void at_exit(void) {
    exercise();
    early[3] = realloc(early[3], 5000);
    CHECK(is_filled(early[3], 3, 1500));
    puts("at exit");
}

// Works until the process is gone.
static void *never_ends(void *nothing) {
    for (;;) exercise();
    return nothing;
}

int main(void) {
    CHECK(made_by_thread);
    for (int i = 99; i >= 50; i--) {
        CHECK(is_filled(early[i], i, (size_t)i * 500));
        free(early[i]);
    }
    for (int i = 0; i < 40; i++) CHECK(atexit(at_exit) == 0);
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, never_ends, NULL) == 0);
    }
    puts("main");
    return 0;
}
