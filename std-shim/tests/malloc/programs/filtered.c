// A program that filters its own system calls, as the one of OpenSSH that speaks with strangers: whatever is not on the
// list ends it. Then it works, and its heap with it. `files`: files may be opened, so that the heap can find out.
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#define JUMP(number, yes) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, yes)
#define ALLOW(name) JUMP(__NR_##name, SECCOMP_RET_ALLOW)

static void filter(int files) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        JUMP(__NR_openat, files ? SECCOMP_RET_ALLOW : SECCOMP_RET_ERRNO | EACCES),
        ALLOW(brk), ALLOW(clock_gettime), ALLOW(close), ALLOW(exit), ALLOW(exit_group), ALLOW(futex),
        ALLOW(getrandom), ALLOW(madvise), ALLOW(mmap), ALLOW(mprotect), ALLOW(mremap), ALLOW(munmap),
        ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(read), ALLOW(write),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void rest(long ms) {
    struct timespec time = {0, ms * 1000000};
    CHECK(nanosleep(&time, NULL) == 0);
}

static void work(size_t bytes, int count) {
    static char *blocks[40000];
    for (int i = 0; i < count; i++) {
        CHECK((blocks[i] = malloc(bytes)) != NULL);
        memset(blocks[i], 1, bytes);
    }
    for (int i = 0; i < count; i++)
        if (i % 7)
            free(blocks[i]);
    // Long enough for what was freed to go back.
    for (int i = 0; i < 4; i++) {
        rest(30);
        free(malloc(3 << 20));
    }
    for (int i = 0; i < count; i += 7)
        free(blocks[i]);
}

int main(int argc, char **argv) {
    free(malloc(10));
    filter(argc > 1 && strcmp(argv[1], "files") == 0);
    work(1000, 40000);
    work(20000, 2000);
    work(300000, 150);
    char *grows = malloc(2 << 20);
    for (size_t mib = 4; mib < 100; mib *= 2) {
        char *stays = malloc(100000);
        CHECK((grows = realloc(grows, mib << 20)) != NULL);
        memset(grows, 1, mib << 20);
        free(stays);
    }
    free(grows);
    CHECK(write(1, "lives\n", 6) == 6);
    _exit(0);
}
