// A program that takes a filter of system calls once it has begun: some calls, or all but a few, are refused with an error
// or end the process. Arguments: `end` or an error's number, then names of calls; `only` stands for all calls but those that
// a heap cannot do without.
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const struct {
    const char *name;
    int number;
} CALLS[] = {
    {"clone", SYS_clone},
    {"clone3", SYS_clone3},
    {"getrandom", SYS_getrandom},
    {"madvise", SYS_madvise},
    {"membarrier", SYS_membarrier},
    {"mincore", SYS_mincore},
    {"mremap", SYS_mremap},
    {"msync", SYS_msync},
    {"openat", SYS_openat},
    {"prctl", SYS_prctl},
    {"sched_getaffinity", SYS_sched_getaffinity},
    {"sched_setaffinity", SYS_sched_setaffinity},
    {"sched_setscheduler", SYS_sched_setscheduler},
};
enum { COUNT = sizeof CALLS / sizeof *CALLS };

static const int NEEDED[] = {SYS_mmap, SYS_munmap, SYS_mprotect, SYS_futex, SYS_write, SYS_exit, SYS_exit_group};

static int number_of(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (strcmp(CALLS[i].name, name) == 0) return CALLS[i].number;
    CHECK(!"a call of the table");
    return -1;
}

// Each number that is listed is answered by one of the two, every other one by the other.
static void filter(const int *numbers, int count, unsigned listed, unsigned other) {
    struct sock_filter code[2 * COUNT + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int length = 1;
    for (int i = 0; i < count; i++) {
        code[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], 0, 1);
        code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
    struct sock_fprog program = {length, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

// 40 MB in small, middle and long blocks, some of which grow. Three quarters go before the others.
static void work(void) {
    enum { BLOCKS = 20000 };
    static __thread char *blocks[BLOCKS];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            size_t bytes = i % 1000 == 0 ? 1000000 : (size_t)i % 1999 + 1;
            CHECK((blocks[i] = malloc(bytes)) != NULL);
            memset(blocks[i], i, bytes);
            if (i % 3000 == 0) CHECK((blocks[i] = realloc(blocks[i], 5000000)) && is_filled(blocks[i], i, bytes));
        }
        for (int i = 0; i < BLOCKS; i++)
            if (i % 4) free(blocks[i]);
        for (int i = 0; i < BLOCKS; i += 4) free(blocks[i]);
    }
    exercise();
}

static void *in_thread(void *nothing) {
    work();
    return nothing;
}

static void work_in_others(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, in_thread, NULL) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        work();
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 2 && argc - 2 <= COUNT);
    unsigned answer = strcmp(argv[1], "end") == 0 ? SECCOMP_RET_KILL_PROCESS : SECCOMP_RET_ERRNO | atoi(argv[1]);
    exercise();
    if (strcmp(argv[2], "only") == 0) {
        filter(NEEDED, sizeof NEEDED / sizeof *NEEDED, SECCOMP_RET_ALLOW, answer);
        work();
    } else {
        int numbers[COUNT], clones = 0;
        for (int i = 2; i < argc; i++) {
            numbers[i - 2] = number_of(argv[i]);
            clones |= strcmp(argv[i], "clone") == 0;
        }
        filter(numbers, argc - 2, answer, SECCOMP_RET_ALLOW);
        work();
        malloc_trim(0);
        if (!clones) work_in_others();
    }
    CHECK(write(1, "lives\n", 6) == 6);
    _exit(0);
}
