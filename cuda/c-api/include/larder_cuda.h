/* liblarder_cuda.so: Larder's GPU memory for PyTorch, CuPy, RMM and C.
 *
 * Every function may be called from any thread. No call changes the current context or device.
 * `device` is a device's number, as cudaGetDevice returns it. `stream` is a cudaStream_t or a CUstream.
 *
 * Functions that return an int return 0 for success and -1 for a refusal.
 *
 * Streams. A stream is known until larder_cuda_forget_stream. A stream that is destroyed without that call may still
 * run work on memory that is reused. PyTorch never destroys its streams. The null stream and the legacy stream are
 * one stream. The per-thread default stream may be used; a free on it waits for the device, and is refused while a
 * known stream is being captured. All other streams must belong to the device's primary context, as streams of the
 * CUDA runtime do: allocations, steps and windows refuse streams of another context, even of a green context, and
 * frees wait for such streams on the host. The driver is queried once, when a stream is first used here.
 *
 * Errors. larder_cuda_last_error returns the text of a refusal. A refused free keeps the block; the first refused
 * free is reported on stderr.
 *
 * Environment:
 *   LARDER_CUDA_DRIVER    real (the default), stand-in, or auto
 *   LARDER_CUDA_IN_PLACE  1: on all devices, pages of device memory never move (larder_cuda_set_in_place); default 0
 *   LARDER_CUDA_BUDGET    bytes of each device that the process may hold (larder_cuda_set_budget), at least 2 MiB
 *   LARDER_CUDA_SAY       1: reports the first refused allocation on stderr
 *   GPU_CONFIG_FILE       the control file that the process obeys, as a job of `larder`
 *   GPU_STATUS_FILE       the status file that it writes
 *   LARDER_CUDA_LIMIT     bytes that a job may hold until its control file sets a limit; default 0 with a control
 *                         file. If preloaded, bytes that any program may hold. 0, or at least 2 MiB
 *   LARDER_CUDA_PATIENCE  seconds that an allocation waits for the job's limit to be raised; default 30
 *   LARDER_CUDA_PRIORITY  the job's priority; larger is more important
 *
 * A child of fork is not the job, and cannot use devices, as with CUDA.
 *
 * If it is preloaded (LD_PRELOAD) with LARDER_CUDA_LIMIT or one of the job's files, the library also intercepts the
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

/* Allocates memory, at a multiple of 256 bytes, for work that is queued on the stream from now on. Returns null for
 * a size of 0 and for a refusal. */
void *larder_cuda_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* larder_cuda_malloc for callers that do not check for null, such as PyTorch: if the process has a C++ runtime
 * (libstdc++), a refusal throws std::runtime_error with the text of the refusal. The text begins with
 * "CUDA out of memory." if there was no memory. */
void *larder_cuda_malloc_or_throw(ssize_t size, int device, struct CUstream_st *stream);

/* Frees memory. Work that uses it must be queued on the stream, be queued on streams recorded for the block, or be
 * ordered before work that is already queued on the stream. The stream may be any stream of the device, not only that
 * of the allocation.
 * Does nothing with null. The size is ignored. */
void larder_cuda_free(void *block, ssize_t size, int device, struct CUstream_st *stream);

/* Records one more stream that uses the block. A freed block is reused once that stream has done the work that was
 * queued on it at the free. */
void larder_cuda_record_stream(void *block, struct CUstream_st *stream);

/* Forgets a stream, which the caller may then destroy. -1 if a step or a window uses it. */
int larder_cuda_forget_stream(int device, struct CUstream_st *stream);

/* For cupy.cuda.CFunctionAllocator(param, malloc, free, owner): `param` is the stream of all allocations, null for
 * the default stream. */
void *larder_cuda_cupy_malloc(void *param, size_t size, int device);
void larder_cuda_cupy_free(void *param, void *block, int device);

/* For rmm::mr::callback_memory_resource: `device` is the device's number, as a pointer. A refusal throws
 * std::bad_alloc if the process has a C++ runtime (libstdc++). */
void *larder_cuda_rmm_allocate(size_t size, struct CUstream_st *stream, void *device);
void larder_cuda_rmm_deallocate(void *block, size_t size, struct CUstream_st *stream, void *device);

/* Returns the text of the calling thread's last refusal, valid until its next refusal. Never null. */
const char *larder_cuda_last_error(void);

/* Counters of a device's memory, in blocks and bytes. */
struct larder_cuda_counters {
  uint64_t allocations;
  uint64_t frees;
  uint64_t out_of_memory; /* allocations refused for lack of memory */
  uint64_t live_bytes;    /* blocks in use */
  uint64_t peak_live_bytes;
  uint64_t requested_bytes; /* blocks in use, as requested */
  uint64_t reserved_bytes;  /* held from the driver */
  uint64_t peak_reserved_bytes;
  uint64_t limit_bytes; /* maximum of reserved_bytes */
  uint64_t driver_allocations; /* pieces of memory created by the driver */
  uint64_t driver_frees;       /* pieces released to the driver */
};

/* Writes at most `bytes` bytes of the counters: pass sizeof(struct larder_cuda_counters). */
int larder_cuda_stats(int device, struct larder_cuda_counters *into, size_t bytes);

/* Write JSON: the first function the counters, the second the counters and every piece of memory. They write at most
 * `room` bytes, including the terminating NUL, and return the length of the whole text without the NUL. */
size_t larder_cuda_stats_json(int device, char *into, size_t room);
size_t larder_cuda_snapshot_json(int device, char *into, size_t room);

/* Resets the peaks to the current values. */
int larder_cuda_reset_peaks(int device);

/* Releases idle memory of all devices to the driver. Memory that queued work still uses is released at the end of a
 * step, or by the next call. */
void larder_cuda_empty_cache(void);

/* Set the maximum memory of a device that may be held, in bytes or as a fraction of all its memory, in addition to
 * the limit of a control file: 0, or at least a page of 2 MiB. Memory above it is released as blocks are freed. */
int larder_cuda_set_limit(int device, uint64_t bytes);
void larder_cuda_set_memory_fraction(double fraction, int device);

/* Set when pages move, before the first use of a device. They override the environment. By default, idle pages move
 * before more memory is created. In place, pages are mapped once and never move, and more memory is held: for
 * kernels that use new blocks while earlier work of their stream still runs. With a budget, the process may hold at
 * most `bytes` bytes (at least 2 MiB), and pages move only once that many are held. */
int larder_cuda_set_in_place(int device);
int larder_cuda_set_budget(int device, uint64_t bytes);

/* Begin and end a step of a stream: from the third step, repeated allocations get planned places. A job pauses and
 * sleeps at the end of the outermost step of a stream. */
int larder_cuda_begin_step(int device, struct CUstream_st *stream);
int larder_cuda_end_step(int device, struct CUstream_st *stream);

/* Windows: memory for a stream's capture into a graph. Open a window before the capture begins: until it is closed,
 * the stream's allocations come only from the window. Close it after the capture, and end it when the graph no longer
 * runs. `open` returns the window's number, or 0 for a refusal. */
uint64_t larder_cuda_open_window(int device, struct CUstream_st *stream, uint64_t bytes);
int larder_cuda_close_window(uint64_t window);
int larder_cuda_end_window(uint64_t window);

/* Tells the coordinator how much memory of each device the job wants. */
int larder_cuda_want(uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
