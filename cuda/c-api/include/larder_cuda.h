/* liblarder_cuda.so: GPU memory of Larder for PyTorch, CuPy, RMM and C.
 *
 * Everything may be called from any thread. No call changes which context or device is current.
 * `device` is a device's number, as cudaGetDevice gives it. `stream` is a cudaStream_t or a CUstream.
 *
 * Streams. A stream lives until larder_cuda_forget_stream. One that is destroyed without that word may still
 * run work on memory that is given again. PyTorch never destroys its streams. The null stream and the legacy
 * one are one stream. The default stream of each thread may be used; a free on it waits for the device, and is refused
 * while a stream captures that memory was allocated for. All others are of the device's primary context, as those of
 * the CUDA runtime: allocations, steps and windows refuse streams of another context, also of a green one, and frees
 * wait for them on the host. The driver is asked once, where a stream is new here.
 *
 * Errors. What was refused has a text: larder_cuda_last_error. A refused free keeps the block, and is said on
 * stderr, the first one.
 *
 * Environment:
 *   LARDER_CUDA_DRIVER    real (the default), stand-in, or auto
 *   LARDER_CUDA_IN_PLACE  1: pages of device memory never move (larder_cuda_set_in_place), on all devices; 0
 *   LARDER_CUDA_BUDGET    bytes of each device that are the process's anyway (larder_cuda_set_budget), 2 MiB at least
 *   LARDER_CUDA_SAY       1: the first refused allocation is said on stderr
 *   GPU_CONFIG_FILE       the control file that the process obeys, as a job of `larder`
 *   GPU_STATUS_FILE       the status file that it writes
 *   LARDER_CUDA_LIMIT     bytes that a job may hold before its control file says something; 0 with a control file.
 *                         Preloaded, what a program may hold, also where it is no job. 0, or 2 MiB and more
 *   LARDER_CUDA_PATIENCE  seconds that an allocation waits for the job's limit to be raised; 30
 *   LARDER_CUDA_PRIORITY  the job's priority; larger is more important
 *
 * A child of fork cannot use devices, as with CUDA, and is not the job.
 *
 * Preloaded (LD_PRELOAD) with LARDER_CUDA_LIMIT or one of the job's files, the library also stands in front of the
 * driver, for programs that call none of these functions: docs/guide/src/pytorch.md.
 */
#ifndef LARDER_CUDA_H
#define LARDER_CUDA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* Memory, at a multiple of 256 bytes, for work that is queued on the stream from now on. Null for a size of 0
 * and for a refusal. */
void *larder_cuda_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* larder_cuda_malloc for callers that do not look at null, as PyTorch: where the process has a C++ runtime
 * (libstdc++), a refusal throws std::runtime_error with the text. It begins with "CUDA out of memory." where
 * there was no memory. */
void *larder_cuda_malloc_or_throw(ssize_t size, int device, struct CUstream_st *stream);

/* Takes memory back. Work that uses it is queued on the stream, on streams that were recorded for it, or is
 * ordered before what is queued on the stream now. Any stream of the device, not only that of the allocation.
 * Null is nothing. The size is not looked at. */
void larder_cuda_free(void *block, ssize_t size, int device, struct CUstream_st *stream);

/* One more stream uses the block. When it is freed, it is given again once that stream has done what is queued
 * on it then. */
void larder_cuda_record_stream(void *block, struct CUstream_st *stream);

/* The caller destroys the stream after this call. 0, or -1 if a step or a window holds it. */
int larder_cuda_forget_stream(int device, struct CUstream_st *stream);

/* cupy.cuda.CFunctionAllocator(param, malloc, free, owner): `param` is the stream for all of it, null for
 * the default one. */
void *larder_cuda_cupy_malloc(void *param, size_t size, int device);
void larder_cuda_cupy_free(void *param, void *block, int device);

/* rmm::mr::callback_memory_resource: `device` is the device's number, as a pointer. A refusal throws
 * std::bad_alloc where the process has a C++ runtime (libstdc++). */
void *larder_cuda_rmm_allocate(size_t size, struct CUstream_st *stream, void *device);
void larder_cuda_rmm_deallocate(void *block, size_t size, struct CUstream_st *stream, void *device);

/* The text of the calling thread's last refusal, until its next one. Never null. */
const char *larder_cuda_last_error(void);

/* What a device's memory is used for. Counts, and bytes. */
struct larder_cuda_counters {
  uint64_t allocations;
  uint64_t frees;
  uint64_t out_of_memory; /* allocations that were refused for want of memory */
  uint64_t live_bytes;    /* of blocks in use */
  uint64_t peak_live_bytes;
  uint64_t requested_bytes; /* of blocks in use, as they were asked for */
  uint64_t reserved_bytes;  /* held from the driver */
  uint64_t peak_reserved_bytes;
  uint64_t limit_bytes; /* what reserved_bytes may not exceed */
  uint64_t driver_allocations; /* pieces of memory that the driver gave */
  uint64_t driver_frees;       /* of those, given back */
};

/* Writes as many bytes of the counters as there is room for: sizeof(struct larder_cuda_counters). 0, or -1. */
int larder_cuda_stats(int device, struct larder_cuda_counters *into, size_t bytes);

/* Write a text of JSON: the counters; the counters and every piece of memory. No more than `room` bytes, the
 * ending 0 among them; they give the length of the whole text without it. */
size_t larder_cuda_stats_json(int device, char *into, size_t room);
size_t larder_cuda_snapshot_json(int device, char *into, size_t room);

/* Peaks begin anew at what they are now. 0, or -1. */
int larder_cuda_reset_peaks(int device);

/* Gives the driver back what is idle, of all devices. What queued work still uses goes at the end of a step, or
 * with the next call. */
void larder_cuda_empty_cache(void);

/* How much of a device's memory may be held, as bytes or as a part of all, beside what a control file says: 0, or
 * a page of 2 MiB and more. What blocks hold above it goes as they are freed. 0, or -1. */
int larder_cuda_set_limit(int device, uint64_t bytes);
void larder_cuda_set_memory_fraction(double fraction, int device);

/* Before the first use of a device, in place of what the environment says. Pages of the device's memory are mapped
 * once and never move, as kernels need it that take new blocks while earlier work of their stream still runs; more is
 * held. Or: so many bytes are the process's anyway, 2 MiB at least, and no more is held; pages move once three
 * quarters are. By default idle pages move before more is taken from the driver. 0, or -1. */
int larder_cuda_set_in_place(int device);
int larder_cuda_set_budget(int device, uint64_t bytes);

/* A step of a stream: what is allocated again and again gets planned places from the third step on. A job is
 * held back, and sleeps, at the end of the outermost step of a stream. 0, or -1. */
int larder_cuda_begin_step(int device, struct CUstream_st *stream);
int larder_cuda_end_step(int device, struct CUstream_st *stream);

/* Memory for what a stream captures into a graph. Open it before the capture begins: until it is closed the
 * stream's allocations come from it, and from nowhere else. Close it behind the capture, end it when the graph
 * runs no more. The number of the window, 0 for a refusal; 0, or -1. */
uint64_t larder_cuda_open_window(int device, struct CUstream_st *stream, uint64_t bytes);
int larder_cuda_close_window(uint64_t window);
int larder_cuda_end_window(uint64_t window);

/* How much memory of each device the job would like to hold, for the coordinator. 0, or -1. */
int larder_cuda_want(uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
