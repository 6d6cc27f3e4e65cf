/* Checks of a program that says which line failed, with the library's last error. */
#include <stdio.h>

#include "larder_cuda.h"

static int line_of_failure;

#define CHECK(what) \
  do { \
    if (!(what)) { \
      fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #what, larder_cuda_last_error()); \
      line_of_failure = __LINE__; \
      return; \
    } \
  } while (0)
