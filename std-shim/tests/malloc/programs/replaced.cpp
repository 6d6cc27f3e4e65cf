// A program that replaces two operators: the others use its own, as the standard says of the default ones.
#include "check.h"
#include <new>
#include <string>
#include <vector>

static int news, deletes;
enum { HEADER = 32 };

void *operator new(size_t bytes) {
    news++;
    char *block = (char *)malloc(bytes + HEADER);
    if (!block) throw std::bad_alloc();
    memset(block, 0x77, HEADER);
    return block + HEADER;
}

void operator delete(void *block) noexcept {
    if (!block) return;
    deletes++;
    CHECK(is_filled((char *)block - HEADER, 0x77, HEADER));
    free((char *)block - HEADER);
}

struct Thing {
    std::string name = "a name that is too long for a string to hold by itself";
    ~Thing() { name.clear(); }
};

int main() {
    // This delete knows the length, and the default operator with a length calls the one without.
    delete new Thing;
    CHECK(news == 2 && deletes == 2);
    delete[] new Thing[3];
    CHECK(news == 6 && deletes == 6);
    delete[] new char[100];
    CHECK(news == 7 && deletes == 7);
    Thing *thing = new (std::nothrow) Thing;
    delete thing;
    CHECK(news == 9 && deletes == 9);
    ::operator delete[](::operator new[](10, std::nothrow), std::nothrow);
    ::operator delete(::operator new(10, std::nothrow), std::nothrow);
    ::operator delete[](::operator new[](10), (size_t)10);
    CHECK(news == 12 && deletes == 12);
    { std::vector<int> numbers(1000); }
    CHECK(news == 13 && deletes == 13);
    puts("13 of each");
}
