// Threads end in any order. Destructors of their values and of keys allocate and free, and set keys again.
#include "check.h"
#include <algorithm>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

enum { KEYS = 40, AGAIN = 3, THREADS = 8 };

static pthread_key_t keys[KEYS];
static int key_ends, local_ends;

struct Value {
    int key, left;
    char *block;
};

static void set(int key, int left) {
    Value *value = (Value *)malloc(sizeof(Value));
    CHECK(value);
    *value = {key, left, (char *)malloc(100 * key + 1)};
    memset(value->block, key, 100 * key + 1);
    CHECK(pthread_setspecific(keys[key], value) == 0);
}

static void end_of_key(void *at) {
    Value value = *(Value *)at;
    CHECK(is_filled(value.block, value.key, 100 * value.key + 1));
    free(value.block);
    free(at);
    exercise();
    __atomic_add_fetch(&key_ends, 1, __ATOMIC_RELAXED);
    if (value.left > 0) set(value.key, value.left - 1);
}

struct Local {
    std::vector<std::string> words;
    ~Local() {
        CHECK(words.empty() || (words.size() == 100 && words[99] == std::string(99, 'w')));
        words.clear();
        exercise();
        __atomic_add_fetch(&local_ends, 1, __ATOMIC_RELAXED);
    }
};
static thread_local Local first, second;

static void work(int number) {
    for (Local *local : {&first, &second})
        for (int i = 0; i < 100; i++) local->words.push_back(std::string(i, 'w'));
    for (int i = 0; i < KEYS; i++) set(i, number % (AGAIN + 1));
    exercise();
}

int main(int argc, char **argv) {
    int expected = 0, waves = rounds(argc, argv);
    for (auto &key : keys) CHECK(pthread_key_create(&key, end_of_key) == 0);
    for (int wave = 0; wave < waves; wave++) {
        std::vector<std::thread> threads;
        for (int i = 0; i < THREADS; i++) {
            threads.emplace_back(work, i);
            expected += KEYS * (i % (AGAIN + 1) + 1);
        }
        std::rotate(threads.begin(), threads.begin() + wave % THREADS, threads.end());
        for (auto &thread : threads) thread.join();
    }
    CHECK(key_ends == expected && local_ends == 2 * waves * THREADS);
    puts("all ended");
}
