// How much stack the heap's functions take, counted: what lies below the caller is painted, and then looked at. The first
// allocation of the process is made before any library's constructor runs.
#include "check.h"
#include <malloc.h>
#include <pthread.h>

#define APART __attribute__((noinline, noclone))
enum { PAINTED = 64 << 10, NEAR = 256, FIRST = 4096, MOST = 2560, COUNT = 100000 };
// Found by the loader before the program begins: its search takes stack of its own.
static void *(*volatile get)(size_t) = malloc;
static void *(*volatile get_zeroed)(size_t, size_t) = calloc;
static void *(*volatile change)(void *, size_t) = realloc;
static void (*volatile give)(void *) = free;
static int (*volatile trim)(size_t) = malloc_trim;
static void *blocks[COUNT];
static size_t first_bytes;

// Bytes of the stack that `act` writes, from a little below this frame down.
APART static size_t depth_of(void (*act)(void)) {
    volatile char *here = __builtin_frame_address(0);
    for (size_t i = NEAR; i < PAINTED; i++) here[-(long)i] = 0x5a;
    act();
    for (size_t i = PAINTED - 1; i >= NEAR; i--)
        if (here[-(long)i] != 0x5a) return i;
    return NEAR;
}

static void at_most(size_t most, const char *name, void (*act)(void)) {
    size_t bytes = depth_of(act);
    if (bytes > most) printf("%s: %zu bytes of stack, more than %zu\n", name, bytes, most);
}

APART static void one(void) { CHECK((blocks[0] = get(100)) != NULL); }
APART static void one_free(void) { give(blocks[0]); }
APART static void large(void) { CHECK((blocks[0] = get(300000)) != NULL); }
APART static void mapped(void) { CHECK((blocks[0] = get((size_t)5 << 30)) != NULL); }
APART static void zeroed(void) { CHECK((blocks[0] = get_zeroed(1, 2000000)) != NULL); }
APART static void grow(void) { CHECK((blocks[0] = change(blocks[0], 9000000)) != NULL); }
APART static void many(void) { for (int i = 1; i < COUNT; i++) CHECK((blocks[i] = get(i % 700)) != NULL); }
APART static void many_free(void) { for (int i = 1; i < COUNT; i++) if (i % 3) give(blocks[i]); }
APART static void many_large(void) { for (int i = 1; i < 2000; i++) if (i % 3) CHECK((blocks[i] = get(100000 + i)) != NULL); }
APART static void many_large_free(void) { for (int i = 1; i < 2000; i++) if (i % 3) give(blocks[i]); }
APART static void trimmed(void) { trim(0); }

static void early(void) { first_bytes = depth_of(one); }
__attribute__((section(".preinit_array"), used)) static void (*const preinit)(void) = early;

static void *on_thread(void *nothing) {
    at_most(MOST, "a thread's first", one);
    at_most(MOST, "a thread's free", one_free);
    for (int i = 0; i < 40; i++) {
        at_most(MOST, "a thread's next", one);
        one_free();
    }
    at_most(MOST, "a thread's large", large);
    one_free();
    return nothing;
}

int main(void) {
    if (first_bytes > FIRST) printf("the first: %zu bytes of stack\n", first_bytes);
    at_most(MOST, "large", large);
    at_most(MOST, "large free", one_free);
    at_most(MOST, "mapped", mapped);
    at_most(MOST, "mapped free", one_free);
    at_most(MOST, "zeroed", zeroed);
    at_most(MOST, "grow", grow);
    one_free();
    for (int i = 0; i < 3; i++) {
        at_most(MOST, "many", many);
        at_most(MOST, "many free", many_free);
        at_most(MOST, "many large", many_large);
        at_most(MOST, "many large free", many_large_free);
        at_most(MOST, "trim", trimmed);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, on_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    puts("measured");
    return 0;
}
