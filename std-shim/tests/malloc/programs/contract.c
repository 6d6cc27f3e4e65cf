// What each function of C, POSIX and glibc promises: alignment, empty blocks, bad arguments, errno.
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>

// C23. A C library may not have them yet.
void free_sized(void *, size_t) __attribute__((weak));
void free_aligned_sized(void *, size_t, size_t) __attribute__((weak));
// Gone from glibc's headers, not from old programs.
void cfree(void *) __attribute__((weak));

static const size_t sizes[] = {0,    1,    7,     8,     9,     15,     16,     17,     31,      32,     33,
                               63,   64,   100,   127,   128,   129,    255,    256,    512,     1000,   1023,
                               1024, 1025, 2048,  4000,  4096,  4097,   8192,   16384,  32768,   32769,  65536,
                               65537, 131072, 131073, 200000, 262144, 1000000, 2097152, 5000000, 40000000};
enum { SIZES = sizeof sizes / sizeof *sizes };

// All usable bytes are the program's; freeing keeps errno. The C library's own heap gives up to a gigabyte more.
static void use_and_free(void *block, size_t bytes) {
    size_t usable = malloc_usable_size(block), most = 2 * bytes + (1 << 20);
    CHECK(usable >= bytes);
    if (usable > most) usable = most;
    memset(block, 0xa5, usable);
    CHECK(is_filled(block, 0xa5, usable));
    errno = 77;
    free(block);
    CHECK(errno == 77);
}

static void plain(void) {
    for (int i = 0; i < SIZES; i++) {
        void *block = malloc(sizes[i]);
        CHECK(block && is_aligned(block, 16));
        use_and_free(block, sizes[i]);
    }
    void *nothing[100];
    for (int i = 0; i < 100; i++) {
        CHECK((nothing[i] = malloc(0)) != NULL);
        for (int j = 0; j < i; j++) CHECK(nothing[i] != nothing[j]);
    }
    for (int i = 0; i < 100; i++) free(nothing[i]);
    errno = 77;
    free(NULL);
    CHECK(errno == 77);
    CHECK(malloc_usable_size(NULL) == 0);
    puts("malloc, free");
}

static void refused(void) {
    static const size_t too_long[] = {SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4096, PTRDIFF_MAX, (size_t)PTRDIFF_MAX + 1};
    for (int i = 0; i < 5; i++) {
        size_t bytes = too_long[i];
        void *block = malloc(10), *place = block;
        memcpy(block, "123456789", 10);
#define REFUSED(call) (errno = 0, (call) == NULL && errno == ENOMEM)
        CHECK(REFUSED(malloc(bytes)));
        CHECK(REFUSED(calloc(1, bytes)));
        CHECK(REFUSED(calloc(bytes, 1)));
        CHECK(REFUSED(calloc(bytes, 2)));
        CHECK(REFUSED(realloc(block, bytes)));
        CHECK(REFUSED(realloc(NULL, bytes)));
        CHECK(REFUSED(reallocarray(block, bytes, 1)));
        CHECK(REFUSED(reallocarray(block, bytes, 2)));
        CHECK(REFUSED(aligned_alloc(64, bytes)));
        CHECK(REFUSED(memalign(64, bytes)));
        CHECK(REFUSED(valloc(bytes)));
        CHECK(REFUSED(pvalloc(bytes)));
        CHECK(posix_memalign(&place, 64, bytes) == ENOMEM && place == block);
        CHECK(memcmp(block, "123456789", 10) == 0);
        free(block);
    }
    CHECK(REFUSED(calloc((size_t)1 << 32, (size_t)1 << 32)));
    CHECK(REFUSED(calloc((size_t)1 << 33, ((size_t)1 << 31) + 1)));
    CHECK(REFUSED(reallocarray(NULL, (size_t)1 << 32, (size_t)1 << 32)));
    exercise();
    puts("lengths that nothing has");
}

// Products around the largest number, whichever factor is the long one.
static void products(void) {
    void *block = malloc(10);
    for (int shift = 1; shift < 64; shift++) {
        for (int off = -1; off <= 1; off++) {
            size_t one = ((size_t)1 << shift) + off, other = SIZE_MAX / one;
            for (size_t more = other > 2 ? other - 2 : 1; more <= other + 2; more++) {
                CHECK(REFUSED(calloc(one, more)) && REFUSED(calloc(more, one)));
                CHECK(REFUSED(reallocarray(block, one, more)) && REFUSED(reallocarray(NULL, more, one)));
            }
        }
    }
    free(block);
    puts("products");
}

static void zeroed(void) {
    // Over memory that was in use, of every length, also long blocks that were shortened.
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SIZES; i++) {
            void *dirty[4];
            for (int j = 0; j < 4; j++) {
                dirty[j] = malloc(sizes[i]);
                memset(dirty[j], 0xff, malloc_usable_size(dirty[j]));
            }
            for (int j = 0; j < 4; j++) free(dirty[j]);
            char *block = calloc(sizes[i], 1);
            CHECK(block && is_aligned(block, 16) && is_filled(block, 0, sizes[i]));
            memset(block, 0xff, sizes[i]);
            use_and_free(block, sizes[i]);
            block = calloc(3, sizes[i] / 3 + 1);
            CHECK(block && is_filled(block, 0, 3 * (sizes[i] / 3 + 1)));
            free(block);
        }
    }
    void *none = calloc(0, 10), *more = calloc(10, 0);
    CHECK(none && more && none != more);
    free(none);
    free(more);
    puts("calloc");
}

static void resized(void) {
    for (int i = 0; i < SIZES; i++) {
        for (int j = 0; j < SIZES; j++) {
            size_t from = sizes[i], to = sizes[j], both = from < to ? from : to;
            if (to == 0) continue;
            if (both > 300000) both = 300000;
            char *block = malloc(from);
            for (size_t k = 0; k < both; k++) block[k] = (char)(k * 7 + k / 251);
            block = j % 2 ? realloc(block, to) : reallocarray(block, 1, to);
            CHECK(block && is_aligned(block, 16));
            for (size_t k = 0; k < both; k++) CHECK(block[k] == (char)(k * 7 + k / 251));
            CHECK(malloc_usable_size(block) >= to);
            block[to - 1] = 1;
            free(block);
        }
    }
    // Step by step, up and down.
    char *block = NULL;
    for (size_t bytes = 1; bytes < 20000000; bytes += bytes / 8 + 1) {
        CHECK((block = realloc(block, bytes)) != NULL);
        block[0] = 42;
        block[bytes - 1] = 42;
    }
    for (size_t bytes = 20000000; bytes > 0; bytes -= bytes / 8 + 1) {
        CHECK((block = realloc(block, bytes)) != NULL);
        CHECK(block[0] == 42);
    }
    CHECK(realloc(block, 0) == NULL);
    CHECK((block = realloc(NULL, 0)) != NULL);
    free(block);
    CHECK((block = reallocarray(NULL, 0, 5)) != NULL);
    CHECK(reallocarray(block, 5, 0) == NULL);
    puts("realloc, reallocarray");
}

static void aligned(int all) {
    for (size_t align = 1; align <= (size_t)1 << 30; align *= 2) {
        for (int i = 0; i < SIZES; i++) {
            size_t bytes = sizes[i];
            if (align > 4096 && i % 5) continue;
            // To fill the longest takes most of the time.
            if (!all && i == SIZES - 1 && align != 64 && align != 4096) continue;
            void *block = memalign(align, bytes);
            CHECK(block && is_aligned(block, align));
            use_and_free(block, bytes);
            CHECK((block = aligned_alloc(align, bytes)) && is_aligned(block, align));
            memset(block, 0x5a, bytes);
            CHECK((block = realloc(block, bytes * 2 + 1)) && is_filled(block, 0x5a, bytes));
            use_and_free(block, bytes * 2 + 1);
            block = &align;
            errno = 77;
            int answer = posix_memalign(&block, align, bytes);
            CHECK(errno == 77);
            if (align < sizeof(void *)) {
                CHECK(answer == EINVAL && block == &align);
                continue;
            }
            CHECK(answer == 0 && block && is_aligned(block, align));
            use_and_free(block, bytes);
        }
    }
    // An alignment that is no power of two: memalign takes the next one, the others refuse.
    for (size_t align = 3; align < 5000; align = align * 2 + 1) {
        size_t power = 16;
        while (power < align) power *= 2;
        void *block = memalign(align, 100);
        CHECK(block && is_aligned(block, power));
        use_and_free(block, 100);
        errno = 77;
        CHECK(posix_memalign(&block, align, 100) == EINVAL && errno == 77);
        CHECK(posix_memalign(&block, align * 8, 100) == EINVAL && errno == 77);
    }
    void *block;
    CHECK(posix_memalign(&block, 0, 100) == EINVAL);
    CHECK(posix_memalign(&block, (size_t)1 << 62, 100) == ENOMEM);
    CHECK(REFUSED(memalign((size_t)1 << 62, 100)));
    CHECK((errno = 0, memalign(SIZE_MAX, 100) == NULL && errno == EINVAL));
    CHECK((block = memalign(0, 100)) != NULL);
    free(block);
    // Empty ones differ.
    void *one = aligned_alloc(64, 0), *two = aligned_alloc(64, 0);
    CHECK(one && two && one != two);
    free(one);
    free(two);
    puts("memalign, aligned_alloc, posix_memalign");
}

// Blocks of all alignments and many lengths at once, freed in another order: none reaches into another.
static void aligned_together(void) {
    enum { COUNT = 13 * 24 };
    unsigned char *blocks[COUNT];
    size_t bytes[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t align = (size_t)1 << i % 13;
        bytes[i] = (size_t)i * i * 3 + 1;
        blocks[i] = i % 2 ? memalign(align, bytes[i]) : aligned_alloc(align, bytes[i]);
        CHECK(blocks[i] && is_aligned(blocks[i], align));
        memset(blocks[i], i, bytes[i]);
    }
    for (int i = 0; i < COUNT; i += 3) {
        CHECK((blocks[i] = realloc(blocks[i], bytes[i] / 2 + 1)) && is_filled(blocks[i], i, bytes[i] / 2 + 1));
        bytes[i] = bytes[i] / 2 + 1;
    }
    for (int i = 0, at = 0; i < COUNT; i++, at = (at + 131) % COUNT) {
        CHECK(is_filled(blocks[at], at, bytes[at]));
        free(blocks[at]);
    }
    puts("many alignments at once");
}

static void pages(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < SIZES; i++) {
        void *block = valloc(sizes[i]);
        CHECK(block && is_aligned(block, page));
        use_and_free(block, sizes[i]);
        block = pvalloc(sizes[i]);
        CHECK(block && is_aligned(block, page) && malloc_usable_size(block) >= (sizes[i] + page - 1) / page * page);
        use_and_free(block, sizes[i]);
    }
    puts("valloc, pvalloc");
}

static void other_frees(void) {
    for (int i = 0; i < SIZES; i++) {
        errno = 77;
        if (free_sized) free_sized(malloc(sizes[i]), sizes[i]);
        if (free_aligned_sized) free_aligned_sized(aligned_alloc(256, sizes[i]), 256, sizes[i]);
        if (cfree) cfree(calloc(sizes[i], 1));
        CHECK(errno == 77);
    }
    if (free_sized) free_sized(NULL, 0);
    if (free_aligned_sized) free_aligned_sized(NULL, 64, 0);
    exercise();
    puts("free_sized, free_aligned_sized, cfree");
}

static void numbers(void) {
    char *block = malloc(1000000);
    struct mallinfo2 with = mallinfo2();
    CHECK(with.uordblks + with.hblkhd >= 1000000);
    free(block);
    struct mallinfo2 without = mallinfo2();
    CHECK(without.uordblks + without.hblkhd + 900000 < with.uordblks + with.hblkhd);
    struct mallinfo older = mallinfo();
    CHECK(older.arena >= 0);
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    CHECK(stream && malloc_info(0, stream) == 0);
    CHECK(malloc_info(1, stream) != 0);
    fclose(stream);
    CHECK(length > 20 && strncmp(text, "<malloc version=", 16) == 0 && strstr(text, "</malloc>"));
    free(text);
    // Idle memory goes back, and none that is in use.
    enum { COUNT = 2000 };
    char *kept[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK((kept[i] = malloc(3000)) != NULL);
        memset(kept[i], i, 3000);
    }
    for (int i = 0; i < COUNT; i++)
        if (i % 100) free(kept[i]);
    int answer = malloc_trim(0);
    CHECK(answer == 0 || answer == 1);
    for (int i = 0; i < COUNT; i += 100) {
        CHECK(is_filled(kept[i], i, 3000));
        free(kept[i]);
    }
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    exercise();
    puts("mallinfo, malloc_info, malloc_trim");
}

static void *leave_one(void *nothing) {
    for (size_t bytes = 16; bytes < 2000000; bytes *= 3) free(malloc(bytes));
    return memset(malloc(100000), 1, 100000);
}

// What threads had at hand is used again after them: a thousand that come and go take no more than a few.
static void threads_leave_nothing(void) {
    size_t after_few = 0;
    for (int i = 0; i < 1000; i++) {
        pthread_t thread;
        void *left;
        CHECK(pthread_create(&thread, NULL, leave_one, NULL) == 0 && pthread_join(thread, &left) == 0);
        CHECK(is_filled(left, 1, 100000));
        free(left);
        struct mallinfo2 now = mallinfo2();
        if (i == 50) after_few = now.arena + now.hblkhd;
        CHECK(i <= 50 || now.arena + now.hblkhd <= after_few + (8 << 20));
    }
    puts("threads that come and go");
}

// errno is as it was after what succeeds, also where the heap asks the system.
static void errno_kept(void) {
    errno = 77;
    for (int round = 0; round < 20; round++) {
        void *blocks[200];
        for (int i = 0; i < 200; i++) CHECK((blocks[i] = malloc((size_t)i * 1000)) && errno == 77);
        for (int i = 0; i < 200; i++) {
            free(blocks[i]);
            CHECK(errno == 77);
        }
        malloc_trim(0);
        errno = 77;
    }
    puts("errno");
}

// With an argument the longest block has every alignment.
int main(int argc, char **argv) {
    (void)argv;
    setvbuf(stdout, NULL, _IONBF, 0);
    plain();
    refused();
    products();
    zeroed();
    resized();
    aligned(argc > 1);
    aligned_together();
    pages();
    other_frees();
    numbers();
    threads_leave_nothing();
    errno_kept();
    return 0;
}
