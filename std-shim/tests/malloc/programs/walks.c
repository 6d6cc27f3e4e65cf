// The stacks of a report are those that glibc's `backtrace` gives in the same functions, which are called in random ways.
// The arguments: how often, and two libraries that have a function of one name, with frames of different lengths.
#include "check.h"
#include "larder.h"
#include <alloca.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#define APART __attribute__((noinline, noclone, noipa))

// As many as a heap keeps.
enum { FRAMES = 32 };

static __thread uint64_t state = 1;
static char report[20000];
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static const char *libraries[2];

static uint64_t next(uint64_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state % below;
}

static void tell(const char *text, size_t bytes) {
    CHECK(bytes < sizeof report);
    memcpy(report, text, bytes), report[bytes] = 0;
}

// Says what differs.
static void is_stack(const char *heading, void **expected, int count) {
    if (count > FRAMES) count = FRAMES;
    const char *line = strstr(report, heading);
    CHECK(line);
    for (int i = 0; i <= count; i++) {
        line = strchr(line, '\n') + 1;
        // The call, which ends where it returns to.
        void *frame = NULL;
        if (!strncmp(line, "    0x", 6)) frame = (void *)(strtoul(line, NULL, 16) + 1);
        // The innermost frame calls `backtrace` elsewhere than the heap.
        int is_same = i == 0 ? strncmp(strchr(line, '\n') - 8, " misuses", 8) == 0 : i == count || frame == expected[i];
        if (is_same && (i < count || frame == NULL)) continue;
        printf("%s %d of %d: %p\n%s", heading, i, count, i < count ? expected[i] : NULL, report);
        exit(1);
    }
}

APART void misuses(void) {
    void *expected[3][2 * FRAMES];
    int counts[3];
    counts[0] = backtrace(expected[0], 2 * FRAMES);
    void *block = malloc(1 + next(1000));
    counts[1] = backtrace(expected[1], 2 * FRAMES);
    free(block);
    pthread_mutex_lock(&one_at_a_time);
    counts[2] = backtrace(expected[2], 2 * FRAMES);
    free(block);
    is_stack("  allocated by ", expected[0], counts[0]);
    is_stack("  freed by ", expected[1], counts[1]);
    is_stack("  found by ", expected[2], counts[2]);
    pthread_mutex_unlock(&one_at_a_time);
}

APART void goes_on(int depth);

APART void uses(volatile char *bytes, size_t count) {
    memset((char *)bytes, 0, count);
}

APART void with_plain_frame(int depth) {
    char bytes[400];
    uses(bytes, sizeof bytes);
    goes_on(depth);
    uses(bytes, sizeof bytes);
}

APART void with_frame_that_varies(int depth) {
    size_t count = 1 + next(2000);
    char *bytes = alloca(count);
    uses(bytes, count);
    goes_on(depth);
    uses(bytes, count);
}

APART void with_aligned_frame(int depth) {
    _Alignas(128) char bytes[256];
    uses(bytes, sizeof bytes);
    goes_on(depth);
    uses(bytes, sizeof bytes);
}

__attribute__((noinline, noclone, noipa, optimize("no-omit-frame-pointer"))) void with_frame_pointer(int depth) {
    char bytes[100];
    uses(bytes, sizeof bytes);
    goes_on(depth);
    uses(bytes, sizeof bytes);
}

// It calls after it could have returned, and from two places.
APART int returns_early(int depth, int is_early, int a, int b, int c) {
    if (is_early) return a + b;
    if (a) {
        goes_on(depth);
        return b + c;
    }
    goes_on(depth);
    uses((char *)&b, sizeof b);
    return c;
}

// It has no tables: nobody can walk on.
void without_tables(int depth);
__asm__(".text\n.type without_tables, @function\nwithout_tables:\n"
        "sub $72, %rsp\n call goes_on\n add $72, %rsp\n ret\n.size without_tables, . - without_tables\n");

// Its return address lies below a 0, and the tables say so.
void moves_its_return_address(int depth);
__asm__(".text\n.type moves_its_return_address, @function\nmoves_its_return_address:\n.cfi_startproc\n"
        "pop %rax\n push $0\n push %rax\n .cfi_def_cfa_offset 16\n .cfi_offset %rip, -16\n call goes_on\n"
        "pop %rax\n add $8, %rsp\n jmp *%rax\n.cfi_endproc\n.size moves_its_return_address, . - moves_its_return_address\n");

static __thread jmp_buf *back;

APART void jumps_back(int depth) {
    jmp_buf *here = back;
    goes_on(depth);
    longjmp(*here, 1);
}

// It ends with a call, and what the tables say of the next place is not of this one.
void ends_with_a_call(int depth);
__asm__(".text\n.type ends_with_a_call, @function\nends_with_a_call:\n.cfi_startproc\n"
        "push $0\n push $0\n push $0\n .cfi_def_cfa_offset 32\n call jumps_back\n .cfi_def_cfa_offset 24\n nop\n"
        ".cfi_endproc\n.size ends_with_a_call, . - ends_with_a_call\n");

APART void jumps(int depth) {
    jmp_buf here;
    back = &here;
    if (setjmp(here) == 0) ends_with_a_call(depth);
}

static __thread int depth_of_callback;

APART int compares(const void *a, const void *b) {
    if (depth_of_callback < 0) return 0;
    int depth = depth_of_callback;
    depth_of_callback = -1;
    goes_on(depth);
    return 0;
}

APART void sorts(int depth) {
    int two[2] = {2, 1};
    depth_of_callback = depth;
    qsort(two, 2, sizeof *two, compares);
}

APART void handles(int signal) {
    goes_on(depth_of_callback);
}

// Whether the thread is on one of the two other stacks.
static __thread int is_away;

APART void raises(int depth) {
    int goes_away = next(2) && !is_away;
    is_away |= goes_away;
    depth_of_callback = depth;
    CHECK(raise(goes_away ? SIGUSR2 : SIGUSR1) == 0);
    is_away &= !goes_away;
}

APART void *in_a_thread(void *depth) {
    state = (uintptr_t)depth * 0x9E3779B97F4A7C15u + 1;
    goes_on((int)(uintptr_t)depth);
    return NULL;
}

APART void starts_a_thread(int depth) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, in_a_thread, (void *)(uintptr_t)depth) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static ucontext_t here, there;

APART void on_a_stack_of_its_own(int depth) {
    static _Alignas(16) char stack[1 << 18];
    static int is_in_use;
    if (is_away || __atomic_exchange_n(&is_in_use, 1, __ATOMIC_ACQUIRE)) return goes_on(depth);
    is_away = 1;
    CHECK(getcontext(&there) == 0);
    there.uc_stack.ss_sp = stack, there.uc_stack.ss_size = sizeof stack;
    there.uc_link = &here;
    makecontext(&there, (void (*)(void))goes_on, 1, depth);
    CHECK(swapcontext(&here, &there) == 0);
    is_away = 0;
    __atomic_store_n(&is_in_use, 0, __ATOMIC_RELEASE);
}

// How often other code came to lie where code was.
static int same_places;

APART void loads(int depth) {
    static void *last;
    static int times;
    static __thread int is_in_use;
    if (is_in_use) return goes_on(depth);
    is_in_use = 1;
    void *library = dlopen(libraries[times++ % 2], RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    void (*calls_back)(void (*)(int), int) = dlsym(library, "calls_back");
    CHECK(calls_back);
    same_places += last == (void *)calls_back;
    last = calls_back;
    calls_back(goes_on, depth);
    CHECK(dlclose(library) == 0);
    is_in_use = 0;
}

APART void goes_on(int depth) {
    if (depth-- == 0) return misuses();
    switch (next(13)) {
    case 0: with_plain_frame(depth); break;
    case 1: with_plain_frame(depth); uses((char *)&depth, 0); break;
    case 2: with_frame_that_varies(depth); break;
    case 3: with_aligned_frame(depth); break;
    case 4: with_frame_pointer(depth); break;
    case 5: returns_early(depth, 0, next(2), 1, 2); break;
    case 6: sorts(depth); break;
    case 7: raises(depth); break;
    case 8: starts_a_thread(depth); break;
    case 9: loads(depth); break;
    case 10: moves_its_return_address(depth); break;
    case 11: jumps(depth); break;
    case 12: next(2) ? on_a_stack_of_its_own(depth) : without_tables(depth); break;
    }
    uses((char *)&depth, 0);
}

int main(int argc, char **argv) {
    int count = rounds(argc, argv);
    libraries[0] = argv[2], libraries[1] = argv[3];
    larder_on_misuse(tell);
    static char stack[1 << 18];
    CHECK(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = handles, .sa_flags = SA_NODEFER}, NULL) == 0);
    CHECK(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = handles, .sa_flags = SA_NODEFER | SA_ONSTACK}, NULL) == 0);
    for (int i = 0; i < count; i++) {
        for (int depth = 0; depth < 20; depth++) goes_on(depth);
    }
    CHECK(same_places > count);
    puts("as expected");
    return 0;
}
