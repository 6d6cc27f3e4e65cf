// Whether the program has rights that its user has not.
#include "check.h"
#include <sys/auxv.h>

int main(void) {
    exercise();
    puts(getauxval(AT_SECURE) ? "foreign rights" : "own rights");
    return 0;
}
