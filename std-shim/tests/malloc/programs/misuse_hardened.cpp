// Deletes that do not know what they delete.
#include "check.h"
#include <new>

int main(int argc, char **argv) {
    CHECK(argc == 2);
    void *block = operator new(100), *aligned = operator new(100, std::align_val_t(64));
    switch (atoi(argv[1])) {
    case 0: operator delete(block, 99); break;
    case 1: operator delete[](operator new[](100), 101); break;
    case 2: operator delete(aligned, 99, std::align_val_t(64)); break;
    case 3: operator delete(aligned, 100, std::align_val_t(32)); break;
    case 4: operator delete(static_cast<char *>(block) + 16, 84); break;
    }
    puts("went on");
    return 0;
}
