// A program whose `new` allocates more than it was asked for, and whose deletes are the library's.
#include "check.h"
#include <new>

void *operator new(size_t bytes) { return malloc(bytes + 24); }
void operator delete(void *block) noexcept { free(block); }

int main() {
    operator delete(operator new(100), 100);
    operator delete[](operator new[](100), 100);
    delete new long;
    puts("went on");
    return 0;
}
