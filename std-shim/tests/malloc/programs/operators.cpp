// All forms of new and delete; what they do without memory: the new handler, bad_alloc, null.
#include "check.h"
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static const size_t too_long = (size_t)1 << 62;
using Align = std::align_val_t;

static void forms() {
    for (size_t bytes : {(size_t)0, (size_t)1, (size_t)100, (size_t)5000, (size_t)300000}) {
        void *block = ::operator new(bytes);
        CHECK(block && is_aligned(block, 16));
        memset(block, 1, bytes);
        ::operator delete(block);
        CHECK(block = ::operator new[](bytes));
        ::operator delete[](block);
        CHECK(block = ::operator new(bytes, std::nothrow));
        ::operator delete(block, std::nothrow);
        CHECK(block = ::operator new[](bytes, std::nothrow));
        ::operator delete[](block, std::nothrow);
        ::operator delete(::operator new(bytes), bytes);
        ::operator delete[](::operator new[](bytes), bytes);
        for (size_t align = 1; align <= 65536; align *= 2) {
            Align a{align};
            CHECK(is_aligned(block = ::operator new(bytes, a), align));
            ::operator delete(block, a);
            CHECK(is_aligned(block = ::operator new[](bytes, a), align));
            ::operator delete[](block, a);
            CHECK(is_aligned(block = ::operator new(bytes, a, std::nothrow), align) && block);
            ::operator delete(block, a, std::nothrow);
            CHECK(is_aligned(block = ::operator new[](bytes, a, std::nothrow), align) && block);
            ::operator delete[](block, a, std::nothrow);
            ::operator delete(::operator new(bytes, a), bytes, a);
            ::operator delete[](::operator new[](bytes, a), bytes, a);
        }
    }
    ::operator delete(nullptr);
    ::operator delete[](nullptr);
    ::operator delete(nullptr, (size_t)8);
    ::operator delete(nullptr, Align{64});
    struct alignas(512) Wide { char c[700]; };
    std::vector<Wide> wide(20);
    CHECK(is_aligned(wide.data(), 512));
    puts("all forms");
}

template <typename F> static bool throws_bad_alloc(F f) {
    try {
        f();
    } catch (const std::bad_alloc &) {
        return true;
    }
    return false;
}

static bool throwing_forms_throw() {
    return throws_bad_alloc([] { ::operator new(too_long); }) && throws_bad_alloc([] { ::operator new[](too_long); }) &&
           throws_bad_alloc([] { ::operator new(too_long, Align{64}); }) &&
           throws_bad_alloc([] { ::operator new[](too_long, Align{64}); }) &&
           throws_bad_alloc([] { std::string text(too_long / 2, 'a'); });
}

static bool others_give_null() {
    return !::operator new(too_long, std::nothrow) && !::operator new[](too_long, std::nothrow) &&
           !::operator new(too_long, Align{64}, std::nothrow) && !::operator new[](too_long, Align{64}, std::nothrow);
}

static int calls;

struct Own : std::bad_alloc {};

static void handlers() {
    CHECK(throwing_forms_throw() && others_give_null());
    std::set_new_handler([] {
        if (++calls % 3 == 0) std::set_new_handler(nullptr);
    });
    CHECK(throws_bad_alloc([] { ::operator new(too_long); }) && calls == 3);
    std::set_new_handler([] { calls++, std::set_new_handler(nullptr); });
    CHECK(others_give_null() && calls == 4);
    // A handler that throws: what it throws comes out, or null.
    std::set_new_handler([] { calls++; throw Own(); });
    bool own = false;
    try {
        ::operator new(too_long);
    } catch (const Own &) {
        own = true;
    }
    CHECK(own && calls == 5);
    CHECK(throwing_forms_throw());
    calls = 0;
    CHECK(others_give_null() && calls == 4);
    std::set_new_handler(nullptr);
    puts("handlers");
    // A handler that frees what the program can do without.
    static void *spare;
    spare = malloc(100000000);
    std::set_new_handler([] {
        CHECK(spare);
        free(spare);
        spare = nullptr;
        std::set_new_handler(nullptr);
    });
    CHECK(throws_bad_alloc([] { ::operator new(too_long); }) && !spare);
    puts("bad_alloc");
}

// An exception in flight allocates; so does one that another thread catches.
static void exceptions(int rounds) {
    for (int i = 0; i < rounds; i++) {
        std::exception_ptr kept;
        std::thread([&] {
            try {
                std::vector<std::string> words(100, std::string(i % 1000, 'x'));
                throw std::runtime_error(words[7] + "!");
            } catch (...) {
                kept = std::current_exception();
            }
        }).join();
        try {
            std::rethrow_exception(kept);
        } catch (const std::runtime_error &error) {
            CHECK(strlen(error.what()) == (size_t)(i % 1000 + 1));
        }
    }
    puts("exceptions");
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IONBF, 0);
    forms();
    handlers();
    exceptions(rounds(argc, argv));
}
