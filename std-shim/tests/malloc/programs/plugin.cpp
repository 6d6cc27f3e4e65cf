// A library in C++ that a program in C loads: its operators throw, and are caught in it.
#include "check.h"
#include <map>
#include <memory>
#include <new>
#include <string>

static std::map<int, std::string> &texts() {
    static std::map<int, std::string> all;
    return all;
}

struct Early {
    Early() {
        for (int i = 0; i < 50; i++) texts()[i] = std::string(i * 20, 'e');
    }
    ~Early() { texts()[3] = std::string(300, 'd'); }
};
static Early early;

static thread_local std::unique_ptr<std::string> of_thread;

extern "C" int plugin_works(void) {
    of_thread = std::make_unique<std::string>(500, 't');
    for (int i = 0; i < 50; i++) CHECK(texts()[i].size() == (size_t)i * 20);
    int caught = 0;
    try {
        ::operator new((size_t)1 << 62);
    } catch (const std::bad_alloc &) {
        caught++;
    }
    CHECK(!::operator new((size_t)1 << 62, std::nothrow));
    std::set_new_handler([] { throw 5; });
    try {
        ::operator new[]((size_t)1 << 62);
    } catch (int five) {
        caught += five;
    }
    std::set_new_handler(nullptr);
    return caught;
}

extern "C" char *plugin_gives(void) { return strdup("from the library"); }
