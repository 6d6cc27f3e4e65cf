// Fills what a limit on data leaves, frees all of it, and does so again in blocks of another length: what is had each
// time is most of the limit.
#include "check.h"
#include <sys/resource.h>

enum { LIMIT = 300 << 20, MOST = LIMIT / 1000 };

static size_t fill(size_t bytes) {
    static void *blocks[MOST];
    int count = 0;
    while (count < MOST && (blocks[count] = malloc(bytes)))
        count++;
    for (int i = 0; i < count; i++)
        free(blocks[i]);
    return count * bytes;
}

int main(int argc, char **argv) {
    size_t percent = argc > 1 ? atoi(argv[1]) : 70;
    struct rlimit limit = {LIMIT, LIMIT};
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK(fill(1000000) > LIMIT / 100 * percent);
        CHECK(fill(1000) > LIMIT / 100 * percent);
    }
    puts("most of it");
    return 0;
}
