// A fork handler that was registered by a constructor waits for a lock, whose holder allocates first. As a program, or
// as a library that is loaded with one.
#include "growth.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/wait.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t holder;
static sem_t is_held, is_wanted;

static void *hold(void *nothing) {
    pthread_mutex_lock(&lock);
    sem_post(&is_held);
    sem_wait(&is_wanted);
    exercise();
    pthread_mutex_unlock(&lock);
    return nothing;
}

static void before(void) {
    CHECK(pthread_create(&holder, NULL, hold, NULL) == 0);
    sem_wait(&is_held);
    sem_post(&is_wanted);
    pthread_mutex_lock(&lock);
}

static void after(void) {
    pthread_mutex_unlock(&lock);
    CHECK(pthread_join(holder, NULL) == 0);
}

static void in_child(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void begin(void) {
    sem_init(&is_held, 0, 0);
    sem_init(&is_wanted, 0, 0);
    CHECK(pthread_atfork(before, after, in_child) == 0);
}

int main(int argc, char **argv) {
    int all = rounds(argc, argv);
    for (int round = 1; round <= all; round++) {
        exercise();
        pid_t child = fork();
        if (child == 0) {
            exercise();
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        // The main thread and a holder; where this is also loaded as a library, that one's holder, too.
        look_at_growth(round, all, 3);
    }
    puts("all forked");
    return 0;
}
