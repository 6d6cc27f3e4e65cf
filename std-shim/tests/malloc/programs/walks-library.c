// A library that calls its caller back from a frame of WORDS words, all of them 0: who looks there for a return address
// because another library had a shorter frame in this place finds the end of the stack.
#include <stddef.h>

__attribute__((noipa)) static void fills(size_t *words) {
    for (int i = 0; i < WORDS; i++) words[i] = 0;
}

void calls_back(void (*f)(int), int depth) {
    size_t words[WORDS];
    fills(words);
    f(depth);
    fills(words);
}
