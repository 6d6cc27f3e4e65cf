/* Plays a recorded training run as PyTorch calls its allocator: on three streams and two devices.
 *
 *   train TRACE
 *
 * The first stream of device 0 and the stream of device 1 take turns, event by event. Then all idle memory goes
 * back, and device 0's second stream plays it again. Says the peaks of the three as JSON. */
#include "driver.h"
#include "larder_cuda.h"

enum { MOST = 1 << 20 };

struct player {
  int device;
  stream_t stream;
  void *blocks[MOST];
};

static size_t sizes[MOST];

static void play(struct player *player, char kind, long id) {
  if (kind == 'a') {
    void *block = larder_cuda_malloc((ssize_t)sizes[id], player->device, player->stream);
    if (block == NULL) {
      fprintf(stderr, "%s\n", larder_cuda_last_error());
      exit(1);
    }
    player->blocks[id] = block;
  } else if (kind == 'f') {
    larder_cuda_free(player->blocks[id], (ssize_t)sizes[id], player->device, player->stream);
    player->blocks[id] = NULL;
  }
}

static void read_and_play(FILE *trace, struct player **players, int count) {
  char line[256];
  rewind(trace);
  while (fgets(line, sizeof line, trace) != NULL) {
    char kind = 0;
    long id = 0;
    size_t bytes = 0;
    if (line[0] == '#' || sscanf(line, "%c %ld %zu", &kind, &id, &bytes) < 2)
      continue;
    if (kind == 'a')
      sizes[id] = bytes;
    for (int each = 0; each < count; each++)
      play(players[each], kind, id);
  }
  /* What the run left. */
  for (int each = 0; each < count; each++)
    for (long id = 0; id < MOST; id++)
      if (players[each]->blocks[id] != NULL)
        play(players[each], 'f', id);
}

int main(int count, char **arguments) {
  static struct player first, second, other;
  FILE *trace = fopen(count > 1 ? arguments[1] : "", "r");
  must(trace == NULL, "the trace");
  open_driver();
  use_device(1);
  other = (struct player){.device = 1, .stream = new_stream()};
  use_device(0);
  first = (struct player){.device = 0, .stream = new_stream()};
  second = (struct player){.device = 0, .stream = new_stream()};
  struct player *both[] = {&first, &other}, *again[] = {&second};
  read_and_play(trace, both, 2);
  struct larder_cuda_counters one, two;
  must(larder_cuda_stats(0, &one, sizeof one), "stats");
  must(larder_cuda_stats(1, &two, sizeof two), "stats");
  larder_cuda_empty_cache();
  must(larder_cuda_reset_peaks(0), "reset_peaks");
  read_and_play(trace, again, 1);
  printf("{\"first\": %lu, \"other\": %lu", (unsigned long)one.peak_reserved_bytes,
         (unsigned long)two.peak_reserved_bytes);
  must(larder_cuda_stats(0, &one, sizeof one), "stats");
  printf(", \"again\": %lu, \"live\": %lu, \"allocations\": %lu, \"frees\": %lu, \"findings\": %lu}\n",
         (unsigned long)one.peak_reserved_bytes, (unsigned long)(one.live_bytes + two.live_bytes),
         (unsigned long)one.allocations, (unsigned long)one.frees, findings());
  return 0;
}
