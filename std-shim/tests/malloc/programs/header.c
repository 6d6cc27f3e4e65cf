/* A program of `larder.h` and nothing else, as strict compilers of C and C++ take it: says whose heap malloc is. */
#include "larder.h"
#include <stdio.h>
#include <stdlib.h>

int main(void) {
#ifdef __cplusplus
    larder_counters now = {};
#else
    larder_counters now = {0};
#endif
    size_t bytes = 50000000;
    char *block = (char *)malloc(bytes);
    if (!block || larder_stats(&now, sizeof now) != sizeof now) return 1;
    puts(now.live_bytes >= bytes ? "Larder's" : "another");
    free(block);
    return 0;
}
