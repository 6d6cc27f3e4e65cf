// More than there is: refused with ENOMEM, and the program goes on. Under a limit on addresses, too.
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

static void *in_thread(void *nothing) {
    exercise();
    return nothing;
}

static void fill_up(size_t bytes) {
    enum { MOST = 100000 };
    static void *blocks[MOST];
    int count = 0;
    errno = 0;
    while (count < MOST && (blocks[count] = malloc(bytes))) {
        memset(blocks[count], 1, bytes < 100 ? bytes : 100);
        count++;
    }
    CHECK(count > 0 && count < MOST && errno == ENOMEM);
    for (int i = 0; i < count; i++) {
        CHECK(is_filled(blocks[i], 1, bytes < 100 ? bytes : 100));
        free(blocks[i]);
    }
    // What came back serves other lengths.
    void *block = malloc(bytes * 3 / 2);
    CHECK(block || count < 3);
    free(block);
}

int main(int argc, char **argv) {
    if (argc == 1) {
        // What is longer than memory and swap together is refused, unless the kernel is told to refuse nothing.
        FILE *policy = fopen("/proc/sys/vm/overcommit_memory", "r");
        int refuses = policy == NULL || fgetc(policy) != '1';
        struct sysinfo info;
        CHECK(sysinfo(&info) == 0);
        size_t more = (info.totalram + info.totalswap) * info.mem_unit * 3;
        errno = 0;
        CHECK(!refuses || (malloc(more) == NULL && errno == ENOMEM));
        CHECK(!refuses || (malloc(more * 4) == NULL && errno == ENOMEM));
        CHECK(!refuses || calloc(more, 1) == NULL);
        char *long_one = malloc((size_t)1100 << 20);
        CHECK(long_one);
        long_one[5000] = 'x';
        CHECK(!refuses || realloc(long_one, more) == NULL);
        CHECK(long_one[5000] == 'x');
        free(long_one);
        exercise();
        struct rlimit limit = {(size_t)400 << 20, (size_t)400 << 20};
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        puts("refused");
        fflush(stdout);
        execl("/proc/self/exe", argv[0], "limited", NULL);
        return 1;
    }
    fill_up(60 << 20);
    fill_up(3 << 20);
    fill_up(100000);
    fill_up(20000);
    malloc_trim(0);
    exercise();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    puts("400 MiB");
    return 0;
}
