// A library that begins before the heap's and opens libraries for the program, as a profiler's does under the lock that it
// also holds while it allocates.
#include "check.h"
#include <dlfcn.h>

static int is_locked;

void *dlopen(const char *name, int flags) {
    CHECK(!is_locked);
    return ((void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen"))(name, flags);
}

__attribute__((constructor)) static void begin(void) {
    is_locked = 1;
    exercise();
    is_locked = 0;
}
