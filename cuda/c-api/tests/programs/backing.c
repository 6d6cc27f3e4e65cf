/* How much is held where idle pages lie apart and a block asks for as many in one piece, in MiB, and whether more is
 * given; or why something was refused.
 *
 *   backing [in-place | budget BYTES] */
#include <stdint.h>
#include <string.h>

#include "driver.h"
#include "larder_cuda.h"

#define MIB ((ssize_t)1 << 20)

/* Says why something was refused, and ends the program. */
static void *given(void *block) {
  if (block == NULL) {
    printf("%s\n", larder_cuda_last_error());
    exit(0);
  }
  return block;
}

int main(int count, char **arguments) {
  void *blocks[16];
  struct larder_cuda_counters stats;
  open_driver();
  if (count > 1) {
    int is_budget = strcmp(arguments[1], "budget") == 0;
    int code = is_budget ? larder_cuda_set_budget(0, strtoull(arguments[2], NULL, 10)) : larder_cuda_set_in_place(0);
    given(code == 0 ? arguments : NULL);
  }
  for (int block = 0; block < 16; block++)
    blocks[block] = given(larder_cuda_malloc(2 * MIB, 0, NULL));
  for (int block = 0; block < 16; block += 2)
    larder_cuda_free(blocks[block], 2 * MIB, 0, NULL);
  given(larder_cuda_malloc(16 * MIB, 0, NULL));
  must(larder_cuda_stats(0, &stats, sizeof stats), "stats");
  printf("%d and %s\n", (int)(stats.reserved_bytes / MIB), larder_cuda_malloc(MIB, 0, NULL) ? "more" : "no more");
  /* A device in use stays as it is, another one is still to be chosen for. */
  must(larder_cuda_set_in_place(0) != -1, "a device in use");
  must(strstr(larder_cuda_last_error(), "device 0 is in use") == NULL, larder_cuda_last_error());
  must(larder_cuda_set_budget(0, 1 << 30) != -1, "a device in use");
  must(larder_cuda_set_in_place(1), larder_cuda_last_error());
  must(larder_cuda_set_in_place(-1) != -1, "no device");
  return 0;
}
