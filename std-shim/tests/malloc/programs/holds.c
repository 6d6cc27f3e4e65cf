// Ends with 100 blocks of 1000 bytes and one of 10 MiB, and had 40 MiB more. Says its number, and that of a child.
#include "check.h"
#include <sys/wait.h>

static void *fresh(size_t bytes) {
    char *block = malloc(bytes);
    CHECK(block != NULL);
    return memset(block, 1, bytes);
}

int main(void) {
    void *few[50];
    for (int i = 0; i < 100; i++) fresh(1000);
    fresh(10 << 20);
    free(fresh(40 << 20));
    for (int i = 0; i < 50; i++) few[i] = fresh(3000);
    for (int i = 0; i < 50; i++) free(few[i]);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) return 0;
    CHECK(waitpid(child, NULL, 0) == child);
    printf("%d %d\n", getpid(), child);
    return 0;
}
