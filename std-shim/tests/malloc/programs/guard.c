// Blocks with guard pages: the first argument says what is done to one, the second to how long a block, the third how many
// are allocated before. The block's address is said first.
#include "check.h"
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

static char *block;
static size_t bytes;

static void own_handler(int signal) {
    static const char words[] = "own handler\n";
    (void)!write(1, words, sizeof words - 1);
    _exit(7);
}

__attribute__((noinline, noclone, noipa)) void touch(const char *what) {
    volatile char *at = block;
    // What lies alone in a page ends at its end or begins at its start.
    size_t room = (bytes + 15) & ~(size_t)15;
    int at_end = ((size_t)block + room) % 4096 == 0;
    if (!strcmp(what, "past")) at[at_end ? room : 4096] = 1;
    if (!strcmp(what, "before")) at[at_end ? -(long)((size_t)block % 4096) - 1 : -1] = 1;
    if (!strcmp(what, "read-past")) printf("%d\n", at[at_end ? room : 4096]);
    if (!strcmp(what, "freed")) free(block), at[0] = 1;
    if (!strcmp(what, "read-freed")) free(block), printf("%d\n", at[bytes - 1]);
}

static void misuse(const char *what) {
    if (!strcmp(what, "twice")) free(block), free(block);
    if (!strcmp(what, "inside")) free(block + 1);
    if (!strcmp(what, "slack")) block[bytes] ^= 1, free(block);
    if (!strcmp(what, "realloc-freed")) free(block), block = realloc(block, bytes + 1);
    if (!strcmp(what, "realloc-inside")) block = realloc(block + 1, bytes + 1);
}

static void correct(void) {
    enum { COUNT = 700 };
    static struct { unsigned char *at; size_t bytes; } all[COUNT];
    for (int round = 0; round < 30; round++)
        for (int i = 0; i < COUNT; i++) {
            size_t length = (size_t)(i * 37 + round * 101) % 5000;
            for (size_t j = 0; j < all[i].bytes; j++) CHECK(all[i].at[j] == (unsigned char)i);
            switch ((i + round) % 4) {
            case 0: free(all[i].at), all[i].at = NULL, length = 0; break;
            case 1: free(all[i].at), all[i].at = malloc(length); break;
            case 2:
                free(all[i].at), all[i].at = calloc(1, length);
                for (size_t j = 0; j < length; j++) CHECK(all[i].at[j] == 0);
                break;
            default:
                all[i].at = realloc(all[i].at, length + 1);
                for (size_t j = 0; j < all[i].bytes && j < length; j++) CHECK(all[i].at[j] == (unsigned char)i);
            }
            CHECK((size_t)all[i].at % 16 == 0);
            if (all[i].at) CHECK(malloc_usable_size(all[i].at) >= length), memset(all[i].at, i, length);
            all[i].bytes = length;
        }
    for (int i = 0; i < COUNT; i++) free(all[i].at);
}

// Where blocks lie that a thread never has at hand, each of which is chosen.
static void places(void) {
    int at_start = 0, at_end = 0;
    for (int i = 0; i < 60; i++) {
        size_t place = (size_t)malloc(2000) % 4096;
        at_start += place == 0, at_end += place == 4096 - 2000;
    }
    CHECK(at_start > 0 && at_end > 0 && at_start + at_end == 60);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    setvbuf(stdout, NULL, _IONBF, 0);
    bytes = strtoul(argv[2], NULL, 10);
    if (!strcmp(argv[1], "own-handler")) signal(SIGSEGV, own_handler), argv[1] = "past";
    for (int i = atoi(argv[3]); i > 0; i--) CHECK(malloc(bytes));
    if (!strcmp(argv[1], "nothing")) correct();
    if (!strcmp(argv[1], "places")) places();
    block = malloc(bytes);
    printf("%p\n", (void *)block);
    memset(block, 'a', bytes);
    if (!strcmp(argv[1], "sent")) raise(SIGSEGV);
    touch(argv[1]);
    misuse(argv[1]);
    puts("went on");
    return 0;
}
