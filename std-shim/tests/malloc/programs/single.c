// A program that never starts a thread stays one thread, and may do what only such a program may.
#include "check.h"
#include <dirent.h>
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

static int threads(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void free_much(void) {
    enum { COUNT = 200 };
    void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK((blocks[i] = malloc(300000)) != NULL);
        memset(blocks[i], 1, 300000);
    }
    for (int i = 0; i < COUNT; i++) {
        errno = 77;
        free(blocks[i]);
        CHECK(errno == 77);
    }
}

int main(void) {
    for (int i = 0; i < 3; i++) {
        free_much();
        struct timespec moment = {0, 20000000};
        nanosleep(&moment, NULL);
        CHECK(threads() == 1);
    }
    // Memory that is locked cannot be given back: nobody hears of it.
    if (mlockall(MCL_CURRENT | MCL_FUTURE) == 0) {
        for (int i = 0; i < 50; i++) {
            void *block = malloc(2500000);
            CHECK(block);
            memset(block, 1, 2500000);
            errno = 77;
            free(block);
            CHECK(errno == 77);
        }
        free_much();
        errno = 77;
        malloc_trim(0);
        munlockall();
    }
    free_much();
    if (unshare(CLONE_NEWUSER) != 0) CHECK(errno == EPERM || errno == ENOSPC || errno == ENOSYS);
    exercise();
    CHECK(threads() == 1);
    puts("one thread");
    return 0;
}
