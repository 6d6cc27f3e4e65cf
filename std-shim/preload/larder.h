/* What Larder adds to malloc. Link with liblarder.so or liblarder.a; malloc, free and the rest of the C
 * library's functions are theirs then, too. C99 and later, and C++. */
#ifndef LARDER_H
#define LARDER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the process heap holds. New numbers come at the end. */
struct larder_stats {
    uint64_t live_bytes;      /* in the program's hands, as granted, or at hand of another running thread */
    uint64_t large_bytes;     /* of them, blocks above 128 KiB or with a coarse alignment */
    uint64_t span_bytes;      /* pages cut into small blocks */
    uint64_t committed_bytes; /* usable */
    uint64_t resident_bytes;  /* of them, in memory; 0 where the system does not say */
    uint64_t reserved_bytes;  /* addresses */
    uint64_t retained_bytes;  /* free, and not given back yet */
    uint64_t purged_bytes;    /* given back so far */
    uint64_t heaps;           /* heaps of threads */
    uint64_t steps;           /* steps begun that a heap served */
    uint64_t known_steps;     /* of them, those whose plan was known */
    uint64_t kept_bytes;      /* free small blocks at hand of the calling thread, or of none that runs */
};

/* Writes at most `bytes` bytes of the numbers; gives how many there are. Gather them as
 *     struct larder_stats stats = {0};
 *     larder_stats(&stats, sizeof stats);
 * Walks all heaps: not for a hot path. */
size_t larder_stats(struct larder_stats *stats, size_t bytes);

/* Gives idle memory back to the system; how many bytes of it were in memory. */
uint64_t larder_trim(void);

/* What happens from now on when a heap with LARDER_MODE=hardened or checking finds misuse: the hook gets the report, and
 * the program goes on when it returns. It may allocate. NULL: the report goes to standard error, and the process ends. */
void larder_on_misuse(void (*hook)(const char *report, size_t bytes));

/* A step is work that the calling thread does again and again with nearly the same big blocks: a request, a
 * frame, a training step. Blocks above 32 KiB are planned from the second one on. `key` names its kind; 0 is
 * one without a name. Steps may nest: the outermost counts. An end without a begin does nothing. */
void larder_step_begin(uint64_t key);
void larder_step_end(void);

/* A heap of its own, freed as a whole. One thread uses it at a time. Its blocks are not for free(). */
typedef struct larder_heap larder_heap;

/* NULL if there is no memory. */
larder_heap *larder_heap_new(void);
/* Frees all blocks, and the heap or not. Whatever was allocated, the cost is that of the pages. */
void larder_heap_delete(larder_heap *heap);
void larder_heap_reset(larder_heap *heap);
/* `bytes` bytes at a multiple of `align`, a power of two. NULL with errno if there is no memory (ENOMEM), or the
 * alignment is none (EINVAL). */
void *larder_heap_alloc(larder_heap *heap, size_t bytes, size_t align);
/* A block with another length and its contents, here or elsewhere. NULL with errno if there is no memory: the block
 * is as it was. `bytes` and `align` are those it was allocated with. */
void *larder_heap_resize(larder_heap *heap, void *block, size_t bytes, size_t align, size_t new_bytes);
/* Frees one block, NULL or not. `bytes` and `align` are those it was allocated with. */
void larder_heap_free(larder_heap *heap, void *block, size_t bytes, size_t align);
/* What the program has of a heap. */
uint64_t larder_heap_live_bytes(const larder_heap *heap);

#ifdef __cplusplus
}
#endif

#endif
