// Misuse at random moments among blocks that come, go and are written as they should be: the hook is told of each one,
// with its words and the block's address, and of nothing else. The arguments: what is misused, how often, a seed, and
// whether the heap is checking.
#include "check.h"
#include "larder.h"
#include <stdint.h>

void free_sized(void *block, size_t bytes);

enum { COUNT = 100, QUARANTINE = 17000 };

static struct slot {
    unsigned char *block;
    size_t bytes;
    unsigned char fill;
} slots[COUNT];

static uint64_t state;
static int told;
static char report[4000];

static uint64_t next(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static void tell(const char *text, size_t bytes) {
    // It may allocate.
    char *copy = malloc(bytes + 1);
    memcpy(copy, text, bytes), copy[bytes] = 0;
    snprintf(report, sizeof report, "%s", copy);
    free(copy);
    told++;
}

static void is_told(const char *words, const void *address) {
    char line[200];
    if (address) snprintf(line, sizeof line, "larder: %s: %p\n", words, address);
    else snprintf(line, sizeof line, "larder: %s: 0x", words);
    if (told == 1 && !strncmp(report, line, strlen(line))) {
        told = 0;
        return;
    }
    printf("told %d times, and not \"%s\": %s\n", told, line, report);
    exit(1);
}

static size_t some_bytes(void) {
    switch (next(10)) {
    case 0: return 1 + next(300000);
    case 1: case 2: return 1 + next(9000);
    default: return 1 + next(300);
    }
}

static void is_whole(struct slot *slot) {
    for (size_t i = 0; i < slot->bytes; i++) CHECK(slot->block[i] == slot->fill);
}

static void fill(struct slot *slot) {
    slot->fill = next(256);
    memset(slot->block, slot->fill, slot->bytes);
}

static void allocate(struct slot *slot) {
    slot->bytes = some_bytes();
    slot->block = malloc(slot->bytes);
    CHECK(slot->block);
    fill(slot);
}

// A slot with a block.
static struct slot *some(void) {
    struct slot *slot = &slots[next(COUNT)];
    if (!slot->block) allocate(slot);
    return slot;
}

static void go_on(int times) {
    while (times--) {
        struct slot *slot = &slots[next(COUNT)];
        if (!slot->block) {
            allocate(slot);
            continue;
        }
        is_whole(slot);
        if (next(3)) {
            free(slot->block), slot->block = NULL;
            continue;
        }
        size_t bytes = some_bytes();
        slot->block = realloc(slot->block, bytes);
        CHECK(slot->block);
        if (bytes < slot->bytes) slot->bytes = bytes;
        is_whole(slot);
        slot->bytes = bytes;
        fill(slot);
    }
    if (told) printf("told of nothing: %s\n", report), exit(1);
}

static unsigned char *freed(void) {
    struct slot *slot = some();
    unsigned char *block = slot->block;
    slot->block = NULL;
    free(block);
    return block;
}

static void change(unsigned char *byte) {
    *byte ^= 1 + next(255);
}

// Of the calls that cannot be right, all but these do nothing.
static void misuse(const char *what, int is_checking) {
    static unsigned char own[64];
    unsigned char local[64];
    if (!strcmp(what, "twice")) {
        unsigned char *block = freed();
        go_on(next(50));
        // A block that went long ago may be another one's by now.
        free(block), is_told("freed a block twice", block);
    }
    if (!strcmp(what, "resize-freed")) {
        unsigned char *block = freed();
        CHECK(realloc(block, 1 + next(500)) == NULL);
        is_told("resized a block that was freed", block);
    }
    if (!strcmp(what, "inside")) {
        struct slot *slot = some();
        unsigned char *place = slot->block + 1 + next(slot->bytes);
        free(place), is_told("freed an address where no block of this heap starts", place);
        if (is_checking) CHECK(strstr(report, ": index "));
        is_whole(slot);
    }
    if (!strcmp(what, "resize-inside")) {
        struct slot *slot = some();
        unsigned char *place = slot->block + 1 + next(slot->bytes);
        CHECK(realloc(place, 1 + next(500)) == NULL);
        is_told("resized an address where no block of this heap starts", place);
        is_whole(slot);
    }
    if (!strcmp(what, "foreign")) {
        unsigned char *places[] = {own + next(64), local + next(64), (unsigned char *)(uintptr_t)(1 + next(1 << 30)),
                                   (unsigned char *)(uintptr_t)&misuse};
        unsigned char *place = places[next(4)];
        free(place), is_told("freed an address where no block of this heap starts", place);
    }
    if (!strcmp(what, "layout")) {
        struct slot *slot = some();
        free_sized(slot->block, slot->bytes + 1 + next(3 * slot->bytes));
        is_told("freed a block with another layout than it was allocated with", slot->block);
        slot->block = NULL;
    }
    if (!strcmp(what, "past")) {
        struct slot *slot = some();
        unsigned char *block = slot->block;
        change(block + slot->bytes);
        slot->block = NULL;
        free(block), is_told("wrote past the end of a block", block);
    }
    if (!strcmp(what, "before")) {
        struct slot *slot = some();
        unsigned char *block = slot->block;
        change(block - 1 - next(16));
        slot->block = NULL;
        free(block), is_told("wrote before the start of a block", block);
    }
    if (!strcmp(what, "after-free-soon")) {
        struct slot *slot = some();
        size_t bytes = slot->bytes;
        unsigned char *block = slot->block;
        slot->block = NULL;
        free(block);
        change(block + next(bytes < 200 ? bytes : 200));
        free(malloc(10)), is_told("wrote to a block that was freed", block);
    }
    if (!strcmp(what, "after-free")) {
        struct slot *slot = some();
        size_t bytes = slot->bytes;
        unsigned char *block = slot->block;
        slot->block = NULL;
        free(block), free(malloc(10)), free(malloc(10));
        change(block + next(bytes));
        for (int i = 0; i < QUARANTINE; i++) free(malloc(10));
        is_told("wrote to a block that was freed", block);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    larder_on_misuse(tell);
    state = 0x9E3779B97F4A7C15u ^ strtoul(argv[3], NULL, 10);
    for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
        go_on(50);
        misuse(argv[1], atoi(argv[4]));
    }
    for (int i = 0; i < COUNT; i++) free(slots[i].block);
    go_on(0);
    puts("told of each");
    return 0;
}
