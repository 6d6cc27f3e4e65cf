/* A driver whose first cuMemPoolDestroy is refused, after another thread of the program has allocated from the pool.
 * All else is the driver's that it is linked with. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef void *handle_t;

extern int cuCtxGetCurrent(handle_t *);
extern int cuCtxSetCurrent(handle_t);
/* As the program finds it. */
extern int cuMemAllocFromPoolAsync(uint64_t *, size_t, handle_t, handle_t);

struct task {
  handle_t context, pool;
  int code;
};

static void *allocate(void *given) {
  struct task *task = given;
  uint64_t address;
  cuCtxSetCurrent(task->context);
  task->code = cuMemAllocFromPoolAsync(&address, 1 << 20, task->pool, NULL);
  return NULL;
}

/* Here, so that this is the driver. */
int cuInit(unsigned flags) {
  int (*real)(unsigned);
  *(void **)&real = dlsym(RTLD_NEXT, "cuInit");
  return real(flags);
}

int cuMemPoolDestroy(handle_t pool) {
  static int is_refused;
  if (is_refused) {
    int (*real)(handle_t);
    *(void **)&real = dlsym(RTLD_NEXT, "cuMemPoolDestroy");
    return real(pool);
  }
  is_refused = 1;
  struct task task = {.pool = pool};
  cuCtxGetCurrent(&task.context);
  pthread_t thread;
  pthread_create(&thread, NULL, allocate, &task);
  pthread_join(thread, NULL);
  return task.code != 0 ? task.code : 999;
}
