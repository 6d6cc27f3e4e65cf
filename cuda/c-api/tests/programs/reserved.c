/* The life of reservations, on the stand-in: growth at one address, what is refused, threads, and tensors. */
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "driver.h"
#include "larder_cuda.h"

#define MIB ((uint64_t)1 << 20)
#define BYTES (4096 * MIB)

/* As in dlpack.h. */
struct DLManagedTensor {
  void *data;
  int device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *);
};

#define REFUSED(what, text) CHECK((what) && strstr(larder_cuda_last_error(), text) != NULL)

static struct larder_cuda_counters stats(void) {
  struct larder_cuda_counters stats;
  must(larder_cuda_stats(0, &stats, sizeof stats), "stats");
  return stats;
}

static void *current(void) {
  void *context = NULL;
  CALL("cuCtxGetCurrent", (void **), &context);
  return context;
}

static void fill_with(void *first, uint64_t at, uint64_t bytes, int byte, stream_t stream) {
  CALL("cuMemsetD8Async", (unsigned long long, unsigned char, size_t, stream_t), (unsigned long long)first + at,
       (unsigned char)byte, bytes, stream);
}

/* Returns the byte at an address once the stream has done its work. */
static int byte_at(void *first, uint64_t at, stream_t stream) {
  unsigned char byte = 0;
  CALL("cuStreamSynchronize", (stream_t), stream);
  CALL("cuMemcpyDtoH_v2", (void *, unsigned long long, size_t), &byte, (unsigned long long)first + at, 1);
  return byte;
}

/* No call changes the current context. */
static void contexts(void) {
  void *first = NULL;
  uint64_t unit = 0, reservation = larder_cuda_reserve(0, NULL, BYTES, &first, &unit);
  CHECK(reservation != 0 && first != NULL && unit == BYTES / 1024 && current() == NULL);
  CHECK(larder_cuda_commit(reservation, 0, 1, NULL) == 0 && current() == NULL);
  CHECK(larder_cuda_unreserve(reservation) == 0 && current() == NULL);
  use_device(0);
  larder_cuda_empty_cache();
  CHECK(stats().reserved_bytes == 0);
}

/* From one unit to many at one address, and back. */
static void growth(void) {
  enum { UNITS = 24 };
  stream_t stream = new_stream();
  void *first = NULL, *block;
  uint64_t unit = 0, reservation = larder_cuda_reserve(0, stream, BYTES, &first, &unit);
  CHECK(reservation != 0 && stats().live_bytes == 0 && stats().reserved_bytes == 0);
  for (int count = 0; count < UNITS; count++) {
    CHECK(larder_cuda_commit(reservation, count * unit, unit, stream) == 0);
    fill_with(first, count * unit, unit, count + 1, stream);
    CHECK(stats().live_bytes == (count + 1) * unit);
  }
  for (int count = 0; count < UNITS; count++) {
    CHECK(byte_at(first, count * unit, stream) == count + 1);
    CHECK(byte_at(first, (count + 1) * unit - 1, stream) == count + 1);
  }
  /* A unit stays as long as one of two commits. */
  CHECK(larder_cuda_commit(reservation, UNITS * unit - 10, 20, stream) == 0);
  CHECK(stats().live_bytes == (UNITS + 1) * unit);
  CHECK(larder_cuda_decommit(reservation, UNITS * unit - 10, 20, stream) == 0);
  CALL("cuStreamSynchronize", (stream_t), stream);
  larder_cuda_empty_cache();
  CHECK(stats().live_bytes == UNITS * unit && byte_at(first, UNITS * unit - 1, stream) == UNITS);
  /* Decommitted units are idle memory: where no more may be held, a block takes it. */
  CHECK(larder_cuda_set_limit(0, UNITS * unit) == 0);
  CHECK(larder_cuda_malloc((ssize_t)unit, 0, stream) == NULL);
  CHECK(larder_cuda_decommit(reservation, 8 * unit, (UNITS - 8) * unit, stream) == 0);
  CHECK(stats().live_bytes == 8 * unit && stats().reserved_bytes == UNITS * unit);
  CHECK((block = larder_cuda_malloc((ssize_t)((UNITS - 8) * unit), 0, stream)) != NULL);
  CHECK(stats().reserved_bytes == UNITS * unit && larder_cuda_set_limit(0, UINT64_MAX) == 0);
  fill_with(block, 0, (UNITS - 8) * unit, 99, stream);
  larder_cuda_free(block, 0, 0, stream);
  CALL("cuStreamSynchronize", (stream_t), stream);
  larder_cuda_empty_cache();
  CHECK(stats().reserved_bytes == 8 * unit && byte_at(first, 7 * unit, stream) == 8);
  /* The end frees the rest, even of a unit that was committed twice. */
  CHECK(larder_cuda_commit(reservation, 0, unit, stream) == 0);
  CHECK(larder_cuda_unreserve(reservation) == 0 && stats().live_bytes == 0);
  larder_cuda_empty_cache();
  CHECK(stats().reserved_bytes == 0 && findings() == 0);
  CHECK(larder_cuda_forget_stream(0, stream) == 0);
  /* No bytes have no address and no units. */
  CHECK((reservation = larder_cuda_reserve(0, NULL, 0, &first, &unit)) != 0 && first == NULL);
  CHECK(larder_cuda_commit(reservation, 0, 0, NULL) == 0 && larder_cuda_unreserve(reservation) == 0);
}

/* Units pass between streams, and the next user of the memory waits for the last one. */
static void streams(void) {
  stream_t all[] = {new_stream(), new_stream(), NULL, (stream_t)1, (stream_t)2};
  for (int round = 0; round < 125; round++) {
    stream_t reserved_on = all[round % 5], committed_on = all[round / 5 % 5], decommitted_on = all[round / 25 % 5];
    void *first = NULL, *event = NULL, *block;
    uint64_t unit = 0, reservation = larder_cuda_reserve(0, reserved_on, BYTES, &first, &unit);
    CHECK(reservation != 0 && larder_cuda_commit(reservation, 0, 4 * unit, committed_on) == 0);
    fill_with(first, 0, 4 * unit, 1, committed_on);
    /* The program orders its streams, as it must. */
    CALL("cuEventCreate", (void **, unsigned), &event, 2);
    CALL("cuEventRecord", (void *, stream_t), event, committed_on);
    CALL("cuStreamWaitEvent", (stream_t, void *, unsigned), decommitted_on, event, 0);
    CALL("cuStreamWaitEvent", (stream_t, void *, unsigned), reserved_on, event, 0);
    CALL("cuEventDestroy_v2", (void *), event);
    fill_with(first, 0, 2 * unit, 2, decommitted_on);
    CHECK(larder_cuda_decommit(reservation, 0, 2 * unit, decommitted_on) == 0);
    fill_with(first, 2 * unit, 2 * unit, 3, reserved_on);
    CHECK(larder_cuda_unreserve(reservation) == 0);
    CHECK((block = larder_cuda_malloc((ssize_t)(4 * unit), 0, all[(round + 1) % 5])) != NULL);
    fill_with(block, 0, 4 * unit, 4, all[(round + 1) % 5]);
    larder_cuda_free(block, 0, 0, all[(round + 1) % 5]);
  }
  CALL("cuCtxSynchronize", (void));
  larder_cuda_empty_cache();
  CHECK(findings() == 0 && stats().live_bytes == 0 && stats().reserved_bytes == 0);
}

/* Without memory, a commit changes nothing. */
static void out_of_memory(void) {
  void *first = NULL;
  uint64_t unit = 0, reservation = larder_cuda_reserve(0, NULL, BYTES, &first, &unit);
  CHECK(reservation != 0 && larder_cuda_commit(reservation, 0, 2 * unit, NULL) == 0);
  fill_with(first, 0, 2 * unit, 5, NULL);
  struct larder_cuda_counters before = stats();
  CHECK(larder_cuda_set_limit(0, 4 * unit) == 0);
  REFUSED(larder_cuda_commit(reservation, unit, 8 * unit, NULL) == -1, "CUDA out of memory. ");
  CHECK(stats().out_of_memory == before.out_of_memory + 1 && stats().live_bytes == before.live_bytes);
  REFUSED(larder_cuda_decommit(reservation, unit, 2 * unit, NULL) == -1, "not committed");
  CHECK(byte_at(first, 2 * unit - 1, NULL) == 5);
  CHECK(larder_cuda_commit(reservation, 2 * unit, 2 * unit, NULL) == 0);
  CHECK(larder_cuda_set_limit(0, UINT64_MAX) == 0);
  CHECK(larder_cuda_commit(reservation, unit, 8 * unit, NULL) == 0 && stats().live_bytes == 9 * unit);
  CHECK(larder_cuda_unreserve(reservation) == 0 && stats().live_bytes == 0 && findings() == 0);
}

static void mistakes(void) {
  stream_t stream = new_stream();
  void *first = NULL, *graph = NULL, *context = NULL;
  uint64_t unit = 0, reservation = larder_cuda_reserve(0, stream, BYTES, &first, &unit);
  REFUSED(larder_cuda_reserve(0, stream, BYTES, NULL, &unit) == 0, "null pointer");
  REFUSED(larder_cuda_reserve(0, stream, BYTES, &first, NULL) == 0, "null pointer");
  REFUSED(larder_cuda_reserve(99, stream, BYTES, &first, &unit) == 0, "no device 99");
  CHECK(larder_cuda_reserve(0, stream, UINT64_MAX, &first, &unit) == 0);
  CHECK(larder_cuda_reserve(0, stream, (uint64_t)1 << 60, &first, &unit) == 0);
  CHECK(strstr(larder_cuda_last_error(), "out of memory") == NULL);
  REFUSED(larder_cuda_commit(reservation, BYTES - 1, 2, stream) == -1, "outside of the reservation");
  REFUSED(larder_cuda_commit(reservation, 2, UINT64_MAX, stream) == -1, "outside of the reservation");
  REFUSED(larder_cuda_decommit(reservation, UINT64_MAX, 1, stream) == -1, "outside of the reservation");
  REFUSED(larder_cuda_decommit(reservation, 0, 1, stream) == -1, "not committed");
  CHECK(larder_cuda_commit(reservation, 0, 2 * unit, stream) == 0);
  REFUSED(larder_cuda_decommit(reservation, unit, 2 * unit, stream) == -1, "not committed");
  CHECK(stats().live_bytes == 2 * unit);
  REFUSED(larder_cuda_forget_stream(0, stream) == -1, "in use");
  CALL("cuStreamBeginCapture_v2", (stream_t, int), stream, 2);
  REFUSED(larder_cuda_commit(reservation, 0, unit, stream) == -1, "captured");
  REFUSED(larder_cuda_decommit(reservation, 0, unit, stream) == -1, "captured");
  REFUSED(larder_cuda_unreserve(reservation) == -1, "captured");
  /* On the thread's own stream, the device is waited for, and not beside a capture. */
  uint64_t other = larder_cuda_reserve(0, (stream_t)2, BYTES, &first, &unit);
  CHECK(other != 0 && larder_cuda_commit(other, 0, unit, (stream_t)2) == 0);
  REFUSED(larder_cuda_decommit(other, 0, unit, (stream_t)2) == -1, "end the capture first");
  REFUSED(larder_cuda_unreserve(other) == -1, "end the capture first");
  CHECK(stats().live_bytes == 3 * unit);
  CALL("cuStreamEndCapture", (stream_t, void **), stream, &graph);
  CHECK(larder_cuda_unreserve(other) == 0 && stats().live_bytes == 2 * unit);
  /* A stream of another context. */
  CALL("cuCtxCreate_v2", (void **, unsigned, int), &context, 0, 0);
  stream_t foreign = new_stream();
  CALL("cuCtxPopCurrent_v2", (void **), NULL);
  REFUSED(larder_cuda_reserve(0, foreign, BYTES, &first, &unit) == 0, "primary context");
  REFUSED(larder_cuda_commit(reservation, 0, 1, foreign) == -1, "primary context");
  CHECK(larder_cuda_decommit(reservation, unit, unit, foreign) == 0 && stats().live_bytes == unit);
  CALL("cuCtxDestroy_v2", (void *), context);
  CHECK(larder_cuda_unreserve(reservation) == 0 && stats().live_bytes == 0);
  REFUSED(larder_cuda_unreserve(reservation) == -1, "no such reservation");
  REFUSED(larder_cuda_commit(reservation, 0, 1, NULL) == -1, "no such reservation");
  REFUSED(larder_cuda_decommit(0, 0, 1, NULL) == -1, "no such reservation");
  REFUSED(larder_cuda_reservation_tensor(reservation) == NULL, "no such reservation");
  CHECK(findings() == 0);
}

/* The tensor has all of the bytes, and the reservation ends with it. */
static void tensors(void) {
  stream_t stream = new_stream();
  void *first = NULL, *graph = NULL;
  uint64_t unit = 0, reservation = larder_cuda_reserve(0, stream, BYTES, &first, &unit);
  struct DLManagedTensor *tensor = larder_cuda_reservation_tensor(reservation);
  CHECK(tensor != NULL && tensor->data == first && tensor->byte_offset == 0);
  CHECK(tensor->device_type == 2 && tensor->device_id == 0);
  CHECK(tensor->code == 1 && tensor->bits == 8 && tensor->lanes == 1);
  CHECK(tensor->ndim == 1 && tensor->shape[0] == (int64_t)BYTES && tensor->strides == NULL);
  REFUSED(larder_cuda_reservation_tensor(reservation) == NULL, "ends with its tensor");
  REFUSED(larder_cuda_unreserve(reservation) == -1, "ends with its tensor");
  CHECK(larder_cuda_commit(reservation, 0, 3 * unit, stream) == 0 && stats().live_bytes == 3 * unit);
  fill_with(tensor->data, 0, 3 * unit, 6, stream);
  tensor->deleter(tensor);
  CHECK(stats().live_bytes == 0 && larder_cuda_commit(reservation, 0, 1, stream) == -1);
  /* In a capture, the reservation stays, and this is reported. */
  reservation = larder_cuda_reserve(0, stream, BYTES, &first, &unit);
  CHECK((tensor = larder_cuda_reservation_tensor(reservation)) != NULL);
  CHECK(larder_cuda_commit(reservation, 0, unit, stream) == 0);
  CALL("cuStreamBeginCapture_v2", (stream_t, int), stream, 2);
  tensor->deleter(tensor);
  CALL("cuStreamEndCapture", (stream_t, void **), stream, &graph);
  CHECK(stats().live_bytes == unit && findings() == 0);
}

enum { THREADS = 4, ROUNDS = 300 };

static uint64_t shared;
static uint64_t shared_unit;
static void *shared_first;

/* Commits, fills and decommits the thread's own part, beside blocks. Neighbours share the unit between them. */
static void *work(void *own) {
  uint64_t self = (uint64_t)(intptr_t)own, at = self * 5 * shared_unit + shared_unit / 2;
  use_device(0);
  stream_t stream = new_stream();
  unsigned seed = (unsigned)self + 1;
  for (int round = 0; round < ROUNDS; round++) {
    uint64_t bytes = (uint64_t)(rand_r(&seed) % 5 + 1) * shared_unit;
    if (larder_cuda_commit(shared, at, bytes, stream) != 0)
      line_of_failure = __LINE__;
    fill_with(shared_first, at, bytes, (int)self, stream);
    void *block = larder_cuda_malloc((ssize_t)bytes, 0, stream);
    larder_cuda_free(block, 0, 0, stream);
    if (larder_cuda_decommit(shared, at, bytes, stream) != 0)
      line_of_failure = __LINE__;
  }
  return NULL;
}

static void threads(void) {
  uint64_t live = stats().live_bytes;
  pthread_t all[THREADS];
  CHECK((shared = larder_cuda_reserve(0, NULL, BYTES, &shared_first, &shared_unit)) != 0);
  for (intptr_t self = 0; self < THREADS; self++)
    pthread_create(&all[self], NULL, work, (void *)self);
  for (int self = 0; self < THREADS; self++)
    pthread_join(all[self], NULL);
  CHECK(stats().live_bytes == live && larder_cuda_unreserve(shared) == 0 && findings() == 0);
}

int main(void) {
  open_driver();
  void (*all[])(void) = {contexts, growth, streams, out_of_memory, mistakes, tensors, threads};
  for (size_t test = 0; test < sizeof all / sizeof *all; test++)
    all[test]();
  return line_of_failure != 0;
}
