// What the programs share. The first wrong thing is said on standard output and ends the process.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(...) ((__VA_ARGS__) ? (void)0 : wrong(__FILE__, __LINE__, #__VA_ARGS__))

static inline void wrong(const char *file, int line, const char *what) {
    dprintf(1, "WRONG %s:%d: %s (errno %d)\n", file, line, what, errno);
    _exit(1);
}

// How often the program does what it does: its argument.
static inline int rounds(int argc, char **argv) { return argc > 1 ? atoi(argv[1]) : 10; }

// Whether `bytes` bytes are all `fill`.
static inline int is_filled(const void *block, int fill, size_t bytes) {
    const unsigned char *at = (const unsigned char *)block;
    return bytes == 0 || (at[0] == (unsigned char)fill && memcmp(at, at + 1, bytes - 1) == 0);
}

static inline int is_aligned(const void *block, size_t align) { return (uintptr_t)block % align == 0; }

// Blocks of many lengths, each filled, looked at again and freed.
static inline void exercise(void) {
    static const size_t sizes[] = {1, 8, 24, 100, 1000, 5000, 40000, 200000, 3000000};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    void *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK((blocks[i] = malloc(sizes[i])) != NULL);
        memset(blocks[i], i + 1, sizes[i] < 70000 ? sizes[i] : 70000);
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(is_filled(blocks[i], i + 1, sizes[i] < 70000 ? sizes[i] : 70000));
        free(blocks[i]);
    }
}
