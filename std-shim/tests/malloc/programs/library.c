// Blocks that the C library allocates and the program frees, or the other way.
#include "check.h"
#include <dirent.h>
#include <glob.h>
#include <iconv.h>
#include <locale.h>
#include <regex.h>
#include <search.h>
#include <stdarg.h>
#include <wchar.h>

static int by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv) {
    for (int i = 0; i < rounds(argc, argv); i++) {
        char *text;
        CHECK(asprintf(&text, "%0500d", i) == 500);
        text = realloc(text, 5000);
        free(text);
        free(strdup("a word"));
        free(strndup("a word", 3));
        free(wcsdup(L"a word"));
        CHECK((text = getcwd(NULL, 0)) != NULL);
        free(text);
        CHECK((text = realpath("/proc/self", NULL)) != NULL);
        free(text);
        FILE *file = tmpfile();
        CHECK(file);
        // A line that grows in the program's own block.
        for (int j = 0; j < 3000; j++) fputs("words ", file);
        fputs("\nend", file);
        rewind(file);
        size_t length = 10;
        text = malloc(length);
        CHECK(getline(&text, &length, file) == 18001 && length > 18001);
        CHECK(getline(&text, &length, file) == 3 && strcmp(text, "end") == 0);
        free(text);
        fclose(file);
        FILE *stream = open_memstream(&text, &length);
        for (int j = 0; j < 5000; j++) fprintf(stream, "%d,", j);
        fclose(stream);
        CHECK(length > 20000 && strncmp(text, "0,1,2,", 6) == 0);
        free(text);
        struct dirent **entries;
        int count = scandir("/proc/self", &entries, NULL, alphasort);
        CHECK(count > 5);
        while (count-- > 0) free(entries[count]);
        free(entries);
        glob_t found;
        CHECK(glob("/proc/self/s*", 0, NULL, &found) == 0 && found.gl_pathc > 2);
        globfree(&found);
        regex_t pattern;
        CHECK(regcomp(&pattern, "^(a|b)*c{2,5}[x-z]+$", REG_EXTENDED) == 0);
        CHECK(regexec(&pattern, "ababccxyz", 0, NULL, 0) == 0 && regexec(&pattern, "abc", 0, NULL, 0) != 0);
        regfree(&pattern);
        iconv_t converter = iconv_open("UTF-16", "UTF-8");
        CHECK(converter != (iconv_t)-1 && iconv_close(converter) == 0);
        CHECK(setlocale(LC_ALL, i % 2 ? "C" : "C.UTF-8"));
        CHECK(setenv("A_NAME", i % 2 ? "value" : "a longer value", 1) == 0 && unsetenv("A_NAME") == 0);
        static int numbers[100000];
        for (int j = 0; j < 100000; j++) numbers[j] = j * 7919 % 100003;
        qsort(numbers, 100000, sizeof *numbers, by_number);
        for (int j = 1; j < 100000; j++) CHECK(numbers[j - 1] <= numbers[j]);
        CHECK(hcreate(100) != 0);
        hdestroy();
        CHECK(sscanf("some words", "%ms", &text) == 1 && strcmp(text, "some") == 0);
        free(text);
    }
    puts("the C library");
    return 0;
}
