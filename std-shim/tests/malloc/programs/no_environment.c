// Allocates while there is no environment: as many blocks as are asked for, then in the program's environment.
#include "check.h"

int main(int argc, char **argv) {
    char **saved = environ;
    environ = NULL;
    static char *blocks[10000];
    int count = atoi(argv[1]);
    for (int i = 0; i < count; i++) CHECK((blocks[i] = calloc(1, (size_t)i * 37 % 300000)));
    environ = saved;
    char *block = malloc(100);
    exercise();
    for (int i = 0; i < count; i++) {
        if (i % 3 == 0) CHECK((blocks[i] = realloc(blocks[i], (size_t)i * 71 % 200000 + 1)));
        free(blocks[i]);
    }
    free(block);
    if (argc > 2) free(block), puts("went on");
    puts("all were freed");
    return 0;
}
