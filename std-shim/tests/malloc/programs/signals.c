// Signals come while threads allocate. Their handlers allocate nothing; one of them leaves by a long jump
// from a place where the program does not allocate. Threads are cancelled.
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static volatile int stop;
static volatile sig_atomic_t came;

static void handler(int signal) {
    int kept = errno;
    came++;
    errno = kept + signal * 0;
}

static void *allocate(void *nothing) {
    errno = 77;
    while (!stop) exercise();
    return nothing;
}

static void *until_cancelled(void *nothing) {
    for (;;) {
        exercise();
        pthread_testcancel();
    }
    return nothing;
}

// With as little stack as a thread can have.
static void *on_small_stack(void *nothing) {
    exercise();
    return nothing;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGPROF, &action, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_PROF, &often, NULL) == 0);
    pthread_t threads[3], other;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, allocate, NULL) == 0);
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 16384) == 0);
    for (int i = 0; i < rounds(argc, argv); i++) {
        CHECK(pthread_create(&other, NULL, until_cancelled, NULL) == 0);
        for (int j = 0; j < 3; j++) CHECK(pthread_kill(threads[j], SIGUSR1) == 0);
        CHECK(pthread_cancel(other) == 0 && pthread_join(other, NULL) == 0);
        CHECK(pthread_create(&other, &small, on_small_stack, NULL) == 0);
        CHECK(pthread_join(other, NULL) == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(came > 0);
    puts("signals came");
    return 0;
}
