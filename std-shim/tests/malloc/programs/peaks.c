// A buffer is freed, and three that do not fit in its place are filled: what lay idle makes up for the third.
#include "check.h"
#include <fcntl.h>

enum { MIB = 1 << 20 };

// The most that was ever in memory, in MiB.
static long peak(void) {
    char text[4096];
    int file = open("/proc/self/status", O_RDONLY);
    ssize_t length = read(file, text, sizeof text - 1);
    CHECK(length > 0);
    close(file);
    text[length] = 0;
    const char *line = strstr(text, "VmHWM:");
    CHECK(line);
    return atol(line + 6) / 1024;
}

static void *filled(size_t bytes) {
    // Longer than the heap rests after it has made up for growth.
    usleep(100000);
    char *block = malloc(bytes);
    CHECK(block);
    memset(block, 1, bytes);
    return block;
}

int main(void) {
    void *whole = filled(66 * MIB), *parts[3], *behind = filled(MIB);
    free(whole);
    for (int i = 0; i < 3; i++) parts[i] = filled(22 * MIB + 40000);
    puts(peak() < 66 + 16 ? "little more than what lived" : "what was freed lay idle");
    for (int i = 0; i < 3; i++) free(parts[i]);
    free(behind);
    return 0;
}
