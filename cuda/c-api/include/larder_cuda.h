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
 * frees wait for such streams on the host. Reserving and committing are like allocations here, and decommitting is like
 * a free. The driver is queried once, when a stream is first used here.
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
struct DLManagedTensor; /* dlpack.h */

/* Allocates memory, at a multiple of 256 bytes, for work that is queued on the stream from now on. Returns null for
 * a size of 0 and for a refusal. */
void *larder_cuda_malloc(ssize_t size, int device, struct CUstream_st *stream);

/* larder_cuda_malloc for callers that do not check for null, such as PyTorch: if the process has a C++ runtime
 * (libstdc++), a refusal throws std::runtime_error with the text of the refusal. If there was no memory, the text
 * begins with "CUDA out of memory.", and with PyTorch in the process the exception is a c10::OutOfMemoryError, which
 * is torch.OutOfMemoryError in Python. */
void *larder_cuda_malloc_or_throw(ssize_t size, int device, struct CUstream_st *stream);

/* Frees memory. Work that uses it must be queued on the stream, be queued on streams recorded for the block, or be
 * ordered before work that is already queued on the stream. The stream may be any stream of the device, not only that
 * of the allocation.
 * Does nothing with null. The size is ignored. */
void larder_cuda_free(void *block, ssize_t size, int device, struct CUstream_st *stream);

/* Records one more stream that uses the block. A freed block is reused once that stream has done the work that was
 * queued on it at the free. */
void larder_cuda_record_stream(void *block, struct CUstream_st *stream);

/* Forgets a stream, which the caller may then destroy. -1 if a step, a window or a reservation uses it. */
int larder_cuda_forget_stream(int device, struct CUstream_st *stream);

/* For cupy.cuda.CFunctionAllocator(param, malloc, free, owner): `param` is the stream of all allocations, null for
 * the default stream. */
void *larder_cuda_cupy_malloc(void *param, size_t size, int device);
void larder_cuda_cupy_free(void *param, void *block, int device);

/* For rmm::mr::callback_memory_resource: `device` is the device's number, as a pointer. A refusal throws
 * std::bad_alloc if the process has a C++ runtime (libstdc++). */
void *larder_cuda_rmm_allocate(size_t size, struct CUstream_st *stream, void *device);
void larder_cuda_rmm_deallocate(void *block, size_t size, struct CUstream_st *stream, void *device);

/* Loads the driver. Returns 1 if it is the stand-in, on which no kernels of other programs run, 0 if it is NVIDIA's,
 * and -1 if there is none. */
int larder_cuda_on_stand_in(void);

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

/* Starts to record the newest `entries` events of all devices, at most 1,048,576, in memory that is reserved now; what
 * was recorded before is dropped. 0 ends the recording. */
int larder_cuda_record_history(uint64_t entries);

/* Writes the recorded events of a device as a JSON list, oldest first, like larder_cuda_stats_json. An event has the
 * fields of PyTorch's device_traces: action (alloc, free_requested, free_completed, oom), addr, size, stream, time_us;
 * an oom has device_free in place of addr: the bytes that could still be held. The size is that of the block, after
 * rounding. free_completed follows at once, because freed memory is reused in the order of streams. */
size_t larder_cuda_history_json(int device, char *into, size_t room);

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

/* Reservations: addresses that never change, with memory behind the committed parts only. So captured graphs, tensors
 * and kernel arguments stay valid while a buffer grows and shrinks, and nothing is copied.
 *
 * Reserves addresses for `bytes` bytes, without memory and without a driver call. Writes the first address and the
 * size of a unit, in bytes. Returns the reservation's number, or 0 for a refusal: too few addresses, or no virtual
 * memory on this device. Memory comes and goes in units of whole pages: 1/1024 of the reservation, at least a page of
 * 2 MiB. Reserved addresses count against no limit. */
uint64_t larder_cuda_reserve(int device, struct CUstream_st *stream, uint64_t bytes, void **first,
                             uint64_t *unit_bytes);

/* Commits `bytes` bytes from `offset` on, for work that is queued on the stream from now on: all units that they touch
 * get memory, with undefined contents. Commits of a unit are counted, so neighbours may share it. Costs one driver
 * call, and up to three for each new unit; a unit whose memory is still idle costs none. Committed units count as
 * memory in use, and against limits. As an allocation, a commit may wait for the limit of a job. Refused, with nothing
 * changed: outside of the reservation, in a capture, and without memory; the text then begins with
 * "CUDA out of memory.". */
int larder_cuda_commit(uint64_t reservation, uint64_t offset, uint64_t bytes, struct CUstream_st *stream);

/* Undoes a commit of `bytes` bytes from `offset` on. A unit without commits is idle memory of the device at once, and
 * must not be used any more. Work that uses it must be queued on the stream, or be ordered before work that is already
 * queued there. Refused, with nothing changed: where something is not committed, and in a capture. */
int larder_cuda_decommit(uint64_t reservation, uint64_t offset, uint64_t bytes, struct CUstream_st *stream);

/* Ends a reservation and frees its memory, in the order of the stream of larder_cuda_reserve. Work that uses the
 * memory must be queued on that stream, or be ordered before work that is already queued there. Refused, with nothing
 * changed: in a capture of that stream, and if there is a tensor of it. */
int larder_cuda_unreserve(uint64_t reservation);

/* Exports a reservation to another library, as a tensor of DLPack (without a version): all of its bytes, in one
 * dimension, committed or not. From then on the reservation ends with the tensor, as by larder_cuda_unreserve, when
 * the tensor's deleter is called, on any thread. If that is refused, the reservation stays, and the first such refusal
 * is reported on stderr. Returns null for a refusal, such as for a second tensor. */
struct DLManagedTensor *larder_cuda_reservation_tensor(uint64_t reservation);

/* Tells the coordinator how much memory of each device the job wants. */
int larder_cuda_want(uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
