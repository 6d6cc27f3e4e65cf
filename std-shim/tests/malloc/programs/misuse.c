// Frees that cannot be right, one by one: the argument says which.
#include "check.h"

int main(int argc, char **argv) {
    static char own[100] __attribute__((aligned(16)));
    char local[100] __attribute__((aligned(16)));
    char *block = malloc(100), *long_one = malloc(1000000), *longest = malloc(2000000000);
    CHECK(argc == 2 && block && long_one && longest);
    switch (atoi(argv[1])) {
    case 0: free(block); free(block); break;
    case 1: free(long_one); free(long_one); break;
    case 2: free(longest); free(longest); break;
    case 3: free(long_one + 4096); break;
    case 4: free(longest + 4096); break;
    case 5: free(own); break;
    case 6: free(local); break;
    case 7: free((void *)16); break;
    case 8: free((void *)-16); break;
    default: return 0;
    }
    puts("went on");
    return 0;
}
