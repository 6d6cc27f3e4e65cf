// Many threads fork while others allocate. Each child allocates, frees what its parent had, starts a thread
// and forks again. The program has fork handlers that allocate.
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

enum { FORKERS = 3, ALLOCATORS = 3, KEPT = 200 };

static int count, stop;
static void *kept[FORKERS][KEPT];

static void *in_thread(void *nothing) {
    exercise();
    return nothing;
}

static void wait_for(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void be_child(void **blocks) {
    alarm(300);
    exercise();
    for (int i = 0; i < KEPT; i++) {
        CHECK(is_filled(blocks[i], i, (size_t)i * 100));
        free(blocks[i]);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        exercise();
        _exit(0);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    wait_for(child);
    exercise();
    _exit(0);
}

static void *fork_often(void *argument) {
    void **blocks = argument;
    for (int round = 0; round < count; round++) {
        for (int i = 0; i < KEPT; i++) {
            CHECK((blocks[i] = malloc((size_t)i * 100)) != NULL);
            memset(blocks[i], i, (size_t)i * 100);
        }
        pid_t child = fork();
        if (child == 0) be_child(blocks);
        for (int i = 0; i < KEPT; i++) free(blocks[i]);
        wait_for(child);
    }
    return NULL;
}

static void *allocate(void *nothing) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) exercise();
    return nothing;
}

static void handler(void) { exercise(); }

int main(int argc, char **argv) {
    count = rounds(argc, argv);
    exercise();
    CHECK(pthread_atfork(handler, handler, handler) == 0);
    pthread_t forkers[FORKERS], allocators[ALLOCATORS];
    for (int i = 0; i < ALLOCATORS; i++) CHECK(pthread_create(&allocators[i], NULL, allocate, NULL) == 0);
    for (int i = 0; i < FORKERS; i++) CHECK(pthread_create(&forkers[i], NULL, fork_often, kept[i]) == 0);
    for (int i = 0; i < FORKERS; i++) CHECK(pthread_join(forkers[i], NULL) == 0);
    stop = 1;
    for (int i = 0; i < ALLOCATORS; i++) CHECK(pthread_join(allocators[i], NULL) == 0);
    puts("all children ended well");
    return 0;
}
