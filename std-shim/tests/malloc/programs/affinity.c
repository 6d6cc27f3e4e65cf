// On which processors the threads of a program may run, once there are as many threads as the argument says.
#include "check.h"
#include <dirent.h>

// Prints the list of each thread's processors; returns the number of threads.
static int look(int prints) {
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[300], line[300];
        snprintf(path, sizeof path, "/proc/self/task/%s/%s", entry->d_name, "status");
        FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            if (strncmp(line, "Cpus_allowed_list:", 18) == 0 && prints) fputs(line, stdout);
        if (status) count++, fclose(status);
    }
    closedir(folder);
    return count;
}

// Whether a thread has a name: the heap's own has it once it is where it stays.
static int is_there(const char *name) {
    char line[64];
    FILE *names = popen("cat /proc/$PPID/task/*/comm", "r");
    int found = 0;
    while (fgets(line, sizeof line, names)) found |= strncmp(line, name, strlen(name)) == 0;
    CHECK(pclose(names) == 0);
    return found;
}

int main(int argc, char **argv) {
    int threads = rounds(argc, argv);
    // In use, so that the heap's own thread stays.
    enum { BLOCKS = 40 };
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(1000000)) != NULL);
        memset(blocks[i], 1, 1000000);
    }
    while (threads > 1 && !is_there("larder-purge")) usleep(1000);
    CHECK(look(1) == threads);
    for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
    return 0;
}
