// Forks beside threads that read lines, which allocates under the lock of a stream, and that flush all streams, which
// waits for that lock under the lock of the list of streams. The child and a child without other threads use streams.
#include "growth.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { LINE_BYTES = 300000, FORKS_EACH = 5 };

static atomic_int stop;

static void *read_lines(void *file) {
    while (!stop) {
        char *line = NULL;
        size_t bytes = 0;
        rewind(file);
        CHECK(getline(&line, &bytes, file) == LINE_BYTES);
        free(line);
    }
    return NULL;
}

static void *flush(void *nothing) {
    while (!stop) fflush(NULL);
    return nothing;
}

static void fork_once(int depth) {
    pid_t child = fork();
    if (child == 0) {
        alarm(300);
        exercise();
        CHECK(fclose(tmpfile()) == 0);
        // Here no other thread exists.
        if (depth == 0) fork_once(1);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    alarm(900);
    FILE *file = tmpfile();
    CHECK(file != NULL);
    for (int byte = 1; byte < LINE_BYTES; byte++) fputc('x', file);
    fputc('\n', file);
    fork_once(0);
    pthread_t reader, flusher;
    CHECK(pthread_create(&reader, NULL, read_lines, file) == 0);
    CHECK(pthread_create(&flusher, NULL, flush, NULL) == 0);
    int forks = rounds(argc, argv) * FORKS_EACH;
    for (int round = 0; round < forks; round++) fork_once(0);
    stop = 1;
    CHECK(pthread_join(reader, NULL) == 0 && pthread_join(flusher, NULL) == 0);
    fork_once(0);
    puts("all forked");
    return 0;
}
