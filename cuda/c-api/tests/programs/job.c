/* A job of several on a device: says the number of each step that it ended, until a file is there.
 *
 *   job MIB FILE [bare]
 *
 * Each step allocates, uses and frees so many mebibytes on two streams. With `bare` the library does not hear of
 * steps. */
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "larder_cuda.h"

/* Ends the program where the library refused something. */
static void answer(int code) {
  if (code != 0)
    must(code, larder_cuda_last_error());
}

int main(int count, char **arguments) {
  int is_bare = count > 3, blocks = count > 2 ? atoi(arguments[1]) : 0;
  const ssize_t bytes = (1 << 20) - 256;
  void *held[1024];
  must(blocks < 1 || blocks > 1024, "a number of mebibytes");
  open_driver();
  use_device(0);
  stream_t streams[] = {new_stream(), new_stream()};
  /* A bound, for a test that fails. */
  for (unsigned long step = 1; step < 100000 && access(arguments[2], F_OK) != 0; step++) {
    if (!is_bare)
      answer(larder_cuda_begin_step(0, streams[0]));
    for (int block = 0; block < blocks; block++) {
      held[block] = larder_cuda_malloc(bytes, 0, streams[block % 2]);
      answer(held[block] == NULL);
      fill(held[block], (size_t)bytes, streams[block % 2]);
    }
    for (int block = 0; block < blocks; block++)
      larder_cuda_free(held[block], bytes, 0, streams[block % 2]);
    if (!is_bare)
      answer(larder_cuda_end_step(0, streams[0]));
    printf("%lu\n", step);
    fflush(stdout);
    /* A child that ends is not the job's end. */
    if (step == 1) {
      int status = -1;
      pid_t child = fork();
      if (child == 0)
        exit(0);
      waitpid(child, &status, 0);
      must(status, "a child's end");
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  must(findings() != 0, "findings");
  return 0;
}
