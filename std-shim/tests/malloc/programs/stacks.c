// A block is allocated, freed and misused in functions that say so. The argument is the misuse.
#include "check.h"
#include <pthread.h>

#define APART __attribute__((noinline, noclone, noipa))

APART char *allocates_it(size_t bytes) {
    char *block = malloc(bytes);
    __asm__ volatile("" ::: "memory");
    return block;
}

APART void frees_it(char *block) {
    free(block);
    __asm__ volatile("" ::: "memory");
}

APART void misuses_it(char *block) {
    free(block);
    __asm__ volatile("" ::: "memory");
}

APART void *in_a_thread(void *block) {
    frees_it(block);
    return NULL;
}

APART void leaks(int blocks, size_t bytes) {
    while (blocks--) CHECK(allocates_it(bytes));
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    const char *what = argv[1];
    setvbuf(stdout, NULL, _IONBF, 0);
    if (!strcmp(what, "leaks")) {
        leaks(30, 100);
        // A library's block with more bytes.
        static char text[5000];
        memset(text, 'a', sizeof text - 1);
        char *copy = strdup(text);
        CHECK(copy);
        frees_it(allocates_it(7000));
        puts("ends");
        return 0;
    }
    char *block = allocates_it(100);
    printf("%p\n", (void *)block);
    if (!strcmp(what, "twice")) frees_it(block);
    if (!strcmp(what, "twice-in-threads")) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, in_a_thread, block) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    if (!strcmp(what, "past")) block[103] ^= 1;
    if (!strcmp(what, "before")) block[-16] ^= 1;
    misuses_it(!strcmp(what, "inside") ? block + 40 : block);
    puts("went on");
    return 0;
}
