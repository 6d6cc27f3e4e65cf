// A library in C++ comes and goes; threads look for names that are not there. The argument after the number
// is the library.
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>

static int count, stop;
static const char *path;

static void load(void) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    CHECK(library);
    int (*works)(void) = (int (*)(void))dlsym(library, "plugin_works");
    char *(*gives)(void) = (char *(*)(void))dlsym(library, "plugin_gives");
    CHECK(works && gives && works() == 6);
    char *text = gives();
    CHECK(dlclose(library) == 0);
    CHECK(strcmp(text, "from the library") == 0);
    free(text);
}

static void *load_once(void *nothing) {
    load();
    return nothing;
}

static void *look(void *nothing) {
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        char name[40];
        snprintf(name, sizeof name, "no_such_name_%p", (void *)name);
        CHECK(dlsym(RTLD_DEFAULT, name) == NULL);
        const char *error = dlerror();
        CHECK(error && strstr(error, name));
        CHECK(dlerror() == NULL);
        CHECK(dlopen("/no/such/library.so", RTLD_NOW) == NULL);
        CHECK(strstr(dlerror(), "/no/such/library.so"));
        free(malloc(100));
    }
    return nothing;
}

int main(int argc, char **argv) {
    count = rounds(argc, argv);
    path = argv[2];
    pthread_t lookers[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&lookers[i], NULL, look, NULL) == 0);
    for (int i = 0; i < count; i++) {
        load();
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, load_once, NULL) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(lookers[i], NULL) == 0);
    puts("loaded and gone");
    return 0;
}
