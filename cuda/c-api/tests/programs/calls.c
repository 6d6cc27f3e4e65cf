/* What callers of other languages do with streams, threads, captures and mistakes, on the stand-in. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "driver.h"
#include "larder_cuda.h"

#define MIB ((ssize_t)1 << 20)

static struct larder_cuda_counters stats_of(int device) {
  struct larder_cuda_counters stats;
  must(larder_cuda_stats(device, &stats, sizeof stats), "stats");
  return stats;
}

static void *current(void) {
  void *context = NULL;
  CALL("cuCtxGetCurrent", (void **), &context);
  return context;
}

/* No call changes the current context, the first one of a device neither. */
static void contexts(void) {
  CHECK(current() == NULL);
  void *block = larder_cuda_malloc(MIB, 0, NULL);
  CHECK(block != NULL && current() == NULL);
  use_device(0);
  void *of_first = current();
  void *other = larder_cuda_malloc(MIB, 1, NULL);
  CHECK(other != NULL && current() == of_first);
  larder_cuda_free(other, MIB, 1, NULL);
  larder_cuda_free(block, MIB, 0, NULL);
  larder_cuda_empty_cache();
  CHECK(current() == of_first);
  CHECK(stats_of(0).reserved_bytes == 0 && stats_of(1).reserved_bytes == 0);
}

/* Work of several streams uses a block; whoever gets it next waits for all of them. The stand-in says where
 * not. */
static void streams(void) {
  stream_t first = new_stream(), second = new_stream();
  stream_t legacy = (stream_t)1, per_thread = (stream_t)2;
  stream_t all[] = {first, second, NULL, legacy, per_thread};
  for (int round = 0; round < 200; round++) {
    stream_t given_on = all[round % 5], used_on = all[round / 5 % 5], freed_on = all[round / 25 % 5];
    ssize_t bytes = (round % 7 + 1) * MIB / 4;
    void *block = larder_cuda_malloc(bytes, 0, given_on);
    CHECK(block != NULL);
    fill(block, (size_t)bytes, given_on);
    /* The program orders its streams, as it must. */
    void *event = NULL;
    CALL("cuEventCreate", (void **, unsigned), &event, 2);
    CALL("cuEventRecord", (void *, stream_t), event, given_on);
    CALL("cuStreamWaitEvent", (stream_t, void *, unsigned), used_on, event, 0);
    CALL("cuStreamWaitEvent", (stream_t, void *, unsigned), freed_on, event, 0);
    CALL("cuEventDestroy_v2", (void *), event);
    fill(block, (size_t)bytes / 2, used_on);
    if (used_on != freed_on)
      larder_cuda_record_stream(block, used_on);
    larder_cuda_free(block, bytes, 0, freed_on);
  }
  CALL("cuCtxSynchronize", (void));
  CHECK(findings() == 0);
  larder_cuda_empty_cache();
  CHECK(stats_of(0).live_bytes == 0 && stats_of(0).reserved_bytes == 0);
  CHECK(larder_cuda_forget_stream(0, first) == 0);
  CALL("cuStreamDestroy_v2", (stream_t), first);
  /* Its handle may be given again. */
  stream_t next = new_stream();
  void *block = larder_cuda_malloc(MIB, 0, next);
  CHECK(block != NULL);
  larder_cuda_free(block, MIB, 0, next);
}

/* Streams of another device and of another context are refused, and a free on one waits for it. */
static void foreign_streams(void) {
  use_device(1);
  stream_t of_device = new_stream();
  use_device(0);
  void *context = NULL, *block = NULL;
  CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, 0);
  stream_t of_context = new_stream();
  CALL("cuCtxPopCurrent_v2", (void **), NULL);
  stream_t foreign[] = {of_device, of_context};
  for (int one = 0; one < 2; one++) {
    CHECK(larder_cuda_malloc(10, 0, foreign[one]) == NULL);
    CHECK(strstr(larder_cuda_last_error(), "a stream of the primary context of device 0") != NULL);
    CHECK(strstr(larder_cuda_last_error(), "green context") != NULL);
    CHECK(larder_cuda_begin_step(0, foreign[one]) == -1);
    CHECK(larder_cuda_open_window(0, foreign[one], 1 << 20) == 0);
    for (int recorded = 0; recorded < 2; recorded++) {
      CHECK((block = larder_cuda_malloc(MIB, 0, NULL)) != NULL);
      if (foreign[one] == of_context) {
        CALL("cuCtxSynchronize", (void));
        fill(block, (size_t)MIB, of_context);
      }
      if (recorded)
        larder_cuda_record_stream(block, foreign[one]);
      larder_cuda_free(block, MIB, 0, recorded ? NULL : foreign[one]);
      CHECK(stats_of(0).live_bytes == 0);
      CHECK((block = larder_cuda_malloc(MIB, 0, NULL)) != NULL);
      fill(block, (size_t)MIB, NULL);
      larder_cuda_free(block, MIB, 0, NULL);
    }
  }
  CHECK((block = larder_cuda_malloc(10, 1, of_device)) != NULL);
  larder_cuda_free(block, 10, 1, of_device);
  CALL("cuCtxSynchronize", (void));
  CALL("cuCtxDestroy_v2", (void *), context);
  CHECK(findings() == 0);
}

/* The driver is asked once whose a stream is, and never of the default ones. */
static void questions(void) {
  unsigned long (*calls)(const char *) = (unsigned long (*)(const char *))entry("larder_stand_in_calls");
  stream_t streams[] = {new_stream(), NULL, (stream_t)1, (stream_t)2};
  unsigned long before = calls("cuStreamGetCtx");
  for (int round = 0; round < 12; round++) {
    void *block = larder_cuda_malloc(MIB, 0, streams[round % 4]);
    CHECK(block != NULL);
    larder_cuda_free(block, MIB, 0, streams[round % 4]);
  }
  CHECK(calls("cuStreamGetCtx") == before + 1);
}

static void mistakes(void) {
  char text[4] = "xxx";
  CHECK(larder_cuda_malloc(0, 0, NULL) == NULL && larder_cuda_malloc(-1, 0, NULL) == NULL);
  CHECK(strstr(larder_cuda_last_error(), "-1 bytes") != NULL);
  CHECK(larder_cuda_malloc(1, -1, NULL) == NULL && larder_cuda_malloc(1, 99, NULL) == NULL);
  void *block = larder_cuda_malloc(MIB, 0, NULL);
  larder_cuda_free(NULL, 0, 0, NULL);
  larder_cuda_free((char *)block + 256, MIB, 0, NULL);
  CHECK(strstr(larder_cuda_last_error(), "is not freed") != NULL);
  larder_cuda_free(block, MIB, 1, NULL);
  larder_cuda_record_stream((void *)4096, NULL);
  CHECK(strstr(larder_cuda_last_error(), "0x1000") != NULL);
  CHECK(stats_of(0).live_bytes == (uint64_t)MIB);
  larder_cuda_free(block, MIB, 0, NULL);
  larder_cuda_free(block, MIB, 0, NULL);
  CHECK(stats_of(0).live_bytes == 0);
  CHECK(larder_cuda_end_step(0, NULL) == -1 && larder_cuda_end_window(5) == -1);
  CHECK(larder_cuda_stats(0, NULL, 8) == -1);
  larder_cuda_set_memory_fraction(2.0, 0);
  CHECK(strstr(larder_cuda_last_error(), "fraction") != NULL);
  CHECK(larder_cuda_stats_json(0, text, sizeof text) > 100 && strcmp(text, "{\"a") == 0);
  CHECK(larder_cuda_snapshot_json(0, NULL, 0) > 100);
  /* No memory: the text says how much there is, and the next call works. */
  uint64_t refused = stats_of(0).out_of_memory;
  CHECK(larder_cuda_set_limit(0, 4 << 20) == 0);
  CHECK(larder_cuda_malloc(8 * MIB, 0, NULL) == NULL && stats_of(0).out_of_memory == refused + 1);
  CHECK(strncmp(larder_cuda_last_error(), "CUDA out of memory. ", 20) == 0);
  CHECK(larder_cuda_set_limit(0, UINT64_MAX) == 0);
  /* Most likely it lacks its unit; the limit stays. */
  CHECK(larder_cuda_set_limit(0, 4) == -1 && strstr(larder_cuda_last_error(), "less than a page") != NULL);
  CHECK(stats_of(0).limit_bytes == UINT64_MAX);
  block = larder_cuda_malloc(8 * MIB, 0, NULL);
  CHECK(block != NULL);
  larder_cuda_free(block, 8 * MIB, 0, NULL);
}

/* A free that the driver refuses keeps the block, and what was recorded for it. */
static void refused_free(void) {
  void *block = larder_cuda_malloc(MIB, 0, NULL);
  larder_cuda_record_stream(block, (stream_t)2);
  unsigned (*refuse)(const char *, unsigned long, unsigned long, unsigned) =
      (unsigned (*)(const char *, unsigned long, unsigned long, unsigned))entry("larder_stand_in_fail");
  CHECK(refuse("cuCtxSynchronize", 0, 1, 999) == 0);
  larder_cuda_free(block, MIB, 0, NULL);
  CHECK(strstr(larder_cuda_last_error(), "cuCtxSynchronize") != NULL);
  CHECK(stats_of(0).live_bytes == (uint64_t)MIB);
  larder_cuda_free(block, MIB, 0, NULL);
  CHECK(stats_of(0).live_bytes == 0);
}

/* Peaks are of all that was, until they are reset. */
static void peaks(void) {
  void *block = larder_cuda_malloc(8 * MIB, 0, NULL);
  larder_cuda_free(block, 8 * MIB, 0, NULL);
  CHECK(stats_of(0).peak_live_bytes >= 8 << 20 && stats_of(0).peak_reserved_bytes >= 8 << 20);
  larder_cuda_empty_cache();
  CHECK(larder_cuda_reset_peaks(0) == 0);
  CHECK(stats_of(0).peak_live_bytes == 0 && stats_of(0).peak_reserved_bytes == 0);
}

/* A capture without a window is refused, one with a window is served from it. */
static void captures(void) {
  stream_t stream = new_stream();
  void *graph = NULL, *block = larder_cuda_malloc(MIB, 0, stream);
  larder_cuda_free(block, MIB, 0, stream);
  CALL("cuStreamBeginCapture_v2", (stream_t, int), stream, 2);
  CHECK(larder_cuda_malloc(MIB, 0, stream) == NULL);
  CHECK(strstr(larder_cuda_last_error(), "window") != NULL);
  CALL("cuStreamEndCapture", (stream_t, void **), stream, &graph);
  uint64_t window = larder_cuda_open_window(0, stream, 8 << 20);
  CHECK(window != 0);
  CALL("cuStreamBeginCapture_v2", (stream_t, int), stream, 2);
  block = larder_cuda_malloc(MIB, 0, stream);
  CHECK(block != NULL);
  fill(block, (size_t)MIB, stream);
  larder_cuda_free(block, MIB, 0, stream);
  CHECK(larder_cuda_malloc(16 * MIB, 0, stream) == NULL);
  CALL("cuStreamEndCapture", (stream_t, void **), stream, &graph);
  CHECK(larder_cuda_close_window(window) == 0);
  CHECK(stats_of(0).live_bytes == 8 << 20);
  CHECK(larder_cuda_end_window(window) == 0 && larder_cuda_end_window(window) == -1);
  CHECK(stats_of(0).live_bytes == 0);
}

/* A free on the thread's own stream waits for the device, and not beside a capture, which that would spoil. */
static void free_beside_a_capture(void) {
  stream_t stream = new_stream();
  void *graph = NULL, *written = larder_cuda_malloc(MIB, 0, stream), *block = larder_cuda_malloc(MIB, 0, NULL);
  CALL("cuStreamBeginCapture_v2", (stream_t, int), stream, 0);
  larder_cuda_free(block, MIB, 0, (stream_t)2);
  CHECK(strstr(larder_cuda_last_error(), "end the capture first") != NULL);
  fill(written, (size_t)MIB, stream);
  CALL("cuStreamEndCapture", (stream_t, void **), stream, &graph);
  CHECK(stats_of(0).live_bytes == 2 * (uint64_t)MIB);
  larder_cuda_free(block, MIB, 0, (stream_t)2);
  larder_cuda_free(written, MIB, 0, stream);
  CHECK(stats_of(0).live_bytes == 0);
}

/* Steps that repeat get planned places: the third reserves nothing. */
static void steps(void) {
  stream_t stream = new_stream();
  uint64_t reserved = 0;
  for (int step = 0; step < 6; step++) {
    void *blocks[16];
    CHECK(larder_cuda_begin_step(0, stream) == 0);
    for (int block = 0; block < 16; block++)
      CHECK((blocks[block] = larder_cuda_malloc((block + 1) * MIB / 2, 0, stream)) != NULL);
    for (int block = 0; block < 16; block++)
      larder_cuda_free(blocks[block], (block + 1) * MIB / 2, 0, stream);
    CHECK(larder_cuda_end_step(0, stream) == 0);
    if (step == 3)
      reserved = stats_of(0).reserved_bytes;
  }
  CHECK(stats_of(0).reserved_bytes == reserved);
  CHECK(larder_cuda_begin_step(0, stream) == 0 && larder_cuda_forget_stream(0, stream) == -1);
  CHECK(larder_cuda_end_step(0, stream) == 0 && larder_cuda_forget_stream(0, stream) == 0);
}

enum { THREADS = 4, ROUNDS = 2000 };

static void *blocks_of_all[THREADS][64];
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER;

/* Threads free what others allocated, on streams of their own. */
static void *work(void *own) {
  int self = (int)(intptr_t)own;
  use_device(self % 2);
  unsigned seed = (unsigned)self + 1;
  for (int round = 0; round < ROUNDS; round++) {
    int other = (int)(rand_r(&seed) % (THREADS / 2)) * 2 + self % 2;
    void **place = &blocks_of_all[other][rand_r(&seed) % 64];
    ssize_t bytes = (ssize_t)(rand_r(&seed) % (1 << 20)) + 1;
    void *given = larder_cuda_malloc(bytes, self % 2, NULL);
    pthread_mutex_lock(&handing);
    void *before = *place;
    *place = given;
    pthread_mutex_unlock(&handing);
    if (given == NULL)
      line_of_failure = __LINE__;
    larder_cuda_free(before, 0, self % 2, NULL);
  }
  return NULL;
}

static void threads(void) {
  pthread_t all[THREADS];
  for (intptr_t self = 0; self < THREADS; self++)
    pthread_create(&all[self], NULL, work, (void *)self);
  for (int self = 0; self < THREADS; self++)
    pthread_join(all[self], NULL);
  for (int self = 0; self < THREADS; self++)
    for (int place = 0; place < 64; place++)
      larder_cuda_free(blocks_of_all[self][place], 0, self % 2, NULL);
  for (int device = 0; device < 2; device++)
    CHECK(stats_of(device).live_bytes == 0 && stats_of(device).allocations == stats_of(device).frees);
}

/* What CuPy calls. */
static void cupy(void) {
  stream_t stream = new_stream();
  void *block = larder_cuda_cupy_malloc(stream, 1000, 0), *other = larder_cuda_cupy_malloc(NULL, 1000, 1);
  CHECK(block != NULL && other != NULL && larder_cuda_cupy_malloc(NULL, SIZE_MAX, 0) == NULL);
  larder_cuda_cupy_free(stream, block, 0);
  larder_cuda_cupy_free(NULL, other, 1);
  CHECK(stats_of(0).live_bytes == 0 && stats_of(1).live_bytes == 0);
}

int main(void) {
  open_driver();
  void (*all[])(void) = {contexts, streams,  foreign_streams,       questions, mistakes, refused_free,
                         peaks,    captures, free_beside_a_capture, steps,     threads,  cupy};
  for (size_t test = 0; test < sizeof all / sizeof *all; test++)
    all[test]();
  return line_of_failure != 0;
}
