/* Larder's additions to malloc. Link with liblarder.so or liblarder.a, which then also provide malloc, free and
 * the rest of the C library's functions. C99 and later, and C++. */
#ifndef LARDER_H
#define LARDER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Statistics of the process heap. New fields are appended. */
typedef struct larder_counters {
    uint64_t live_bytes;      /* blocks that the program holds, as granted, or another running thread caches */
    uint64_t large_bytes;     /* part of live_bytes: blocks above 128 KiB or with a coarse alignment */
    uint64_t span_bytes;      /* pages cut into small blocks */
    uint64_t committed_bytes; /* made usable by the system */
    uint64_t resident_bytes;  /* part of committed_bytes in physical memory; 0 if the system does not report it */
    uint64_t reserved_bytes;  /* reserved addresses */
    uint64_t retained_bytes;  /* free, and not yet returned to the system */
    uint64_t purged_bytes;    /* returned to the system so far */
    uint64_t heaps;           /* thread heaps */
    uint64_t steps;           /* steps begun that a heap served */
    uint64_t known_steps;     /* part of steps: those with a known plan */
    uint64_t kept_bytes;      /* free blocks: small ones cached by the calling thread, by ended threads, or in shared lists; large ones of all threads */
} larder_counters;

/* Writes at most `bytes` bytes of the statistics. Returns the size of all of them. Call it as
 *     larder_counters now = {0};
 *     larder_stats(&now, sizeof now);
 * Walks all heaps: not for a hot path. */
size_t larder_stats(larder_counters *into, size_t bytes);

/* Returns idle memory to the system. Returns how many bytes of it were in physical memory. */
uint64_t larder_trim(void);

/* Settings of the running process, for any thread at any time. Both return 0, or EINVAL for a value that is not allowed,
 * and then change nothing. */
#define LARDER_NEVER UINT64_MAX
#define LARDER_NO_LIMIT UINT64_MAX

/* Sets after how many milliseconds freed memory returns to the system: any number, where less than 50 counts as 50, or
 * LARDER_NEVER. Counts from the next tick on, at most half the former delay later. LARDER_PURGE_AFTER is the value at
 * first. `larder_trim` returns idle memory at once. */
int larder_set_purge_after(uint64_t milliseconds);

/* Sets how many bytes the heap should hold at most, in blocks and as idle memory: more than 0, or LARDER_NO_LIMIT, the
 * value at first. Before the last eighth of the limit is reached, idle memory returns to the system, whatever the delay.
 * No allocation is refused: above the limit they become slower. If a cgroup's limit is lower, that one counts. */
int larder_set_memory_limit(uint64_t bytes);

/* Sets how a heap with LARDER_MODE=hardened or checking reacts to misuse: it passes the report to `hook`, which may
 * allocate, and the program continues when that returns. With NULL it prints the report on standard error and ends the
 * process. */
void larder_on_misuse(void (*hook)(const char *report, size_t bytes));

/* Begins and ends a step: work that the calling thread repeats with nearly the same large blocks, such as a request, a
 * frame or a training step. Blocks above 128 KiB are planned. `key` is the kind of the step; 0
 * is the kind without a name. Steps may nest: the outermost counts. An end without a begin does nothing. */
void larder_step_begin(uint64_t key);
void larder_step_end(void);

/* A separate heap, freed as a whole. One thread uses it at a time. Its blocks must not be passed to free(). */
typedef struct larder_heap larder_heap;

/* Creates a heap. Returns NULL if there is no memory. */
larder_heap *larder_heap_new(void);
/* Free all blocks; `delete` frees the heap, too, and does nothing with NULL. The cost depends on the pages only. */
void larder_heap_delete(larder_heap *heap);
void larder_heap_reset(larder_heap *heap);
/* Allocates `bytes` bytes at a multiple of `align`, a power of two. Returns NULL and sets errno if there is no memory
 * (ENOMEM) or `align` is no power of two (EINVAL). */
void *larder_heap_alloc(larder_heap *heap, size_t bytes, size_t align);
/* Resizes a block, in place or by moving it, and keeps its contents. Returns NULL, sets errno and leaves the block as
 * it was if there is no memory. `bytes` and `align` are those of its allocation. With NULL for `block`, allocates. */
void *larder_heap_resize(larder_heap *heap, void *block, size_t bytes, size_t align, size_t new_bytes);
/* Frees a block; does nothing with NULL. `bytes` and `align` are those of its allocation. */
void larder_heap_free(larder_heap *heap, void *block, size_t bytes, size_t align);
/* Returns the live bytes of a heap. */
uint64_t larder_heap_live_bytes(const larder_heap *heap);

#ifdef __cplusplus
}
#endif

#endif
