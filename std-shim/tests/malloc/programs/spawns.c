// Children by vfork, posix_spawn, popen and system, from several threads; then another program in place of
// this one, by a thread that is not the first.
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static int count;

static void ends_with(pid_t child, int code) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static void *start(void *nothing) {
    char *arguments[] = {"sh", "-c", "exit 7", NULL};
    for (int i = 0; i < count; i++) {
        exercise();
        pid_t child = vfork();
        if (child == 0) {
            // Not what POSIX allows, but programs do it.
            free(malloc(100));
            execv("/bin/sh", arguments);
            _exit(1);
        }
        ends_with(child, 7);
        CHECK(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
        ends_with(child, 7);
        if (i % 4 == 0) {
            CHECK(WEXITSTATUS(system("exit 3")) == 3);
            char word[20] = "";
            FILE *pipe = popen("echo word", "r");
            CHECK(pipe && fgets(word, sizeof word, pipe) && strcmp(word, "word\n") == 0);
            CHECK(pclose(pipe) == 0);
        }
    }
    return nothing;
}

static void *become(void *nothing) {
    execl("/bin/sh", "sh", "-c", "echo the other program", NULL);
    return nothing;
}

static void *churn(void *nothing) {
    for (;;) exercise();
    return nothing;
}

int main(int argc, char **argv) {
    count = rounds(argc, argv);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, start, NULL) == 0);
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    puts("all started");
    fflush(stdout);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
    CHECK(pthread_create(&threads[2], NULL, become, NULL) == 0);
    pthread_join(threads[2], NULL);
    return 1;
}
