// What the heap asks of the C library goes to functions of this program, which ask the loader, allocate and free: as
// those of libraries that fake the time or trace threads do. A free calls none of them but the one that has a thread's
// end told, which neither waits nor allocates in the C library.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <time.h>

// Volatile: the compiler takes it that `free` calls nothing of this file.
static volatile __thread int freeing;

static void give_back(void *block) {
    freeing = 1;
    free(block);
    freeing = 0;
}

// Allocates, mostly on slow paths, and asks the loader for a function.
static void *next(const char *name) {
    static __thread int depth;
    if (freeing && strcmp(name, "pthread_setspecific") != 0) wrong(name, 0, "called inside a free");
    if (depth++ == 0) {
        void *blocks[3] = {malloc(40), malloc(5000), malloc(300000)};
        for (int i = 0; i < 3; i++) CHECK(blocks[i]);
        for (int i = 0; i < 3; i++) free(blocks[i]);
    }
    void *function = dlsym(RTLD_NEXT, name);
    depth--;
    CHECK(function);
    return function;
}

#define PASS(name, result, parameters, arguments)                                     \
    result name parameters { return ((result(*) parameters)next(#name)) arguments; }

PASS(clock_gettime, int, (clockid_t clock, struct timespec *time), (clock, time))
PASS(dlopen, void *, (const char *name, int flags), (name, flags))
PASS(dladdr, int, (const void *place, Dl_info *info), (place, info))
PASS(nanosleep, int, (const struct timespec *time, struct timespec *rest), (time, rest))
PASS(pthread_attr_init, int, (pthread_attr_t *attributes), (attributes))
PASS(pthread_create, int, (pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with),
     (thread, attributes, run, with))
PASS(pthread_key_create, int, (pthread_key_t *key, void (*end)(void *)), (key, end))
PASS(pthread_setschedparam, int, (pthread_t thread, int policy, const struct sched_param *priority),
     (thread, policy, priority))
PASS(pthread_setspecific, int, (pthread_key_t key, const void *value), (key, value))
PASS(pthread_sigmask, int, (int how, const sigset_t *set, sigset_t *before), (how, set, before))
PASS(__register_atfork, int, (void (*before)(void), void (*after)(void), void (*child)(void), void *library),
     (before, after, child, library))
PASS(sched_getaffinity, int, (pid_t thread, size_t bytes, cpu_set_t *set), (thread, bytes, set))
PASS(sched_setaffinity, int, (pid_t thread, size_t bytes, const cpu_set_t *set), (thread, bytes, set))
PASS(sched_yield, int, (void), ())
PASS(sysconf, long, (int name), (name))

enum { COUNT = 3000, THREADS = 4 };

static void *blocks[THREADS][COUNT];

static void fill(void **all) {
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = i % 100 == 0 ? 300000 : (size_t)i * 11 % 20000;
        CHECK((all[i] = malloc(bytes)) != NULL);
        memset(all[i], 1, bytes < 100 ? bytes : 100);
    }
}

static void empty(void **all) {
    for (int i = 0; i < COUNT; i++) give_back(all[i * 7 % COUNT]);
}

static void *only_free(void *all) {
    empty(all);
    return NULL;
}

static void *fill_and_empty(void *all) {
    fill(all);
    empty(all);
    return NULL;
}

static void round_of_threads(void *(*run)(void *)) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run, blocks[i]) == 0);
    for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

int main(int argc, char **argv) {
    for (int round = rounds(argc, argv); round > 0; round--) {
        for (int i = 0; i < THREADS; i++) fill(blocks[i]);
        round_of_threads(only_free);
        round_of_threads(fill_and_empty);
        fill(blocks[0]);
        pid_t child = fork();
        if (child == 0) {
            empty(blocks[0]);
            round_of_threads(fill_and_empty);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        empty(blocks[0]);
        // Past the delay.
        struct timespec moment = {0, 5000000};
        nanosleep(&moment, NULL);
    }
    puts("all functions were passed");
    return 0;
}
