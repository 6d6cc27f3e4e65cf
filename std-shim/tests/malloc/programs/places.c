// What is called most starts at a cache line.
#include "check.h"
#include <dlfcn.h>

int main(void) {
    static const char *const names[] = {"malloc", "free",   "calloc", "realloc", "_Znwm",
                                        "_Znam",  "_ZdlPv", "_ZdaPv", "_ZdlPvm", "_ZdaPvm"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(RTLD_DEFAULT, names[i]);
        CHECK(function);
        if (!is_aligned(function, 64)) printf("%s at %p\n", names[i], function);
    }
    return 0;
}
