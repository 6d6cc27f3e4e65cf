/* A program on the driver's interface that knows nothing of Larder: makes the calls that its standard input
 * says, and writes a line for each. How it gets the driver's functions is its first argument: `linked`, `dlsym`,
 * or `proc` for cuGetProcAddress, which `dlsym` finds. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t address_t;
typedef void *handle_t;

struct location {
  int type;
  int id;
};

struct allocation_prop {
  int type;
  int handle_types;
  struct location location;
  void *win32;
  unsigned char flags[8];
};

struct pool_props {
  int type;
  int handle_types;
  struct location location;
  void *win32;
  size_t max_bytes;
  unsigned char reserved[56];
};

struct launch_config {
  unsigned grid[3], block[3], shared;
  handle_t stream;
  void *attributes;
  unsigned count;
};

struct access {
  struct location location;
  int flags;
};

/* Name, base name for cuGetProcAddress, and types of what is called. */
#define FUNCTIONS(CALL)                                                                                      \
  CALL(cuInit, cuInit, (unsigned))                                                                           \
  CALL(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (handle_t *, int))                                \
  CALL(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, (int))                                       \
  CALL(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, (int))                                           \
  CALL(cuCtxCreate_v2, cuCtxCreate, (handle_t *, unsigned, int))                                             \
  CALL(cuCtxDestroy_v2, cuCtxDestroy, (handle_t))                                                            \
  CALL(cuCtxSetCurrent, cuCtxSetCurrent, (handle_t))                                                         \
  CALL(cuCtxSynchronize, cuCtxSynchronize, (void))                                                           \
  CALL(cuStreamCreate, cuStreamCreate, (handle_t *, unsigned))                                               \
  CALL(cuStreamDestroy_v2, cuStreamDestroy, (handle_t))                                                      \
  CALL(cuStreamBeginCapture_v2, cuStreamBeginCapture, (handle_t, int))                                       \
  CALL(cuStreamEndCapture, cuStreamEndCapture, (handle_t, handle_t *))                                       \
  CALL(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (handle_t *, handle_t, uint64_t))           \
  CALL(cuGraphLaunch, cuGraphLaunch, (handle_t, handle_t))                                                   \
  CALL(cuMemAlloc_v2, cuMemAlloc, (address_t *, size_t))                                                     \
  CALL(cuMemAllocPitch_v2, cuMemAllocPitch, (address_t *, size_t *, size_t, size_t, unsigned))               \
  CALL(cuMemAllocManaged, cuMemAllocManaged, (address_t *, size_t, unsigned))                                \
  CALL(cuMemFree_v2, cuMemFree, (address_t))                                                                 \
  CALL(cuMemAllocAsync, cuMemAllocAsync, (address_t *, size_t, handle_t))                                    \
  CALL(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (address_t *, size_t, handle_t, handle_t))          \
  CALL(cuMemFreeAsync, cuMemFreeAsync, (address_t, handle_t))                                                \
  CALL(cuMemPoolCreate, cuMemPoolCreate, (handle_t *, const struct pool_props *))                            \
  CALL(cuMemPoolDestroy, cuMemPoolDestroy, (handle_t))                                                       \
  CALL(cuMemPoolSetAttribute, cuMemPoolSetAttribute, (handle_t, int, void *))                                \
  CALL(cuMemPoolTrimTo, cuMemPoolTrimTo, (handle_t, size_t))                                                 \
  CALL(cuMemCreate, cuMemCreate, (address_t *, size_t, const struct allocation_prop *, uint64_t))            \
  CALL(cuMemRelease, cuMemRelease, (address_t))                                                              \
  CALL(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (address_t *, void *))                      \
  CALL(cuMemAddressReserve, cuMemAddressReserve, (address_t *, size_t, size_t, address_t, uint64_t))         \
  CALL(cuMemMap, cuMemMap, (address_t, size_t, size_t, address_t, uint64_t))                                 \
  CALL(cuMemSetAccess, cuMemSetAccess, (address_t, size_t, const struct access *, size_t))                   \
  CALL(cuMemUnmap, cuMemUnmap, (address_t, size_t))                                                          \
  CALL(cuMemGetInfo_v2, cuMemGetInfo, (size_t *, size_t *))                                                  \
  CALL(cuDeviceTotalMem_v2, cuDeviceTotalMem, (size_t *, int))                                               \
  CALL(cuMemsetD8Async, cuMemsetD8Async, (address_t, unsigned char, size_t, handle_t))                       \
  CALL(cuMemcpyDtoH_v2, cuMemcpyDtoH, (void *, address_t, size_t))                                           \
  CALL(cuModuleLoadData, cuModuleLoadData, (handle_t *, const void *))                                       \
  CALL(cuModuleGetFunction, cuModuleGetFunction, (handle_t *, handle_t, const char *))                       \
  CALL(cuLaunchKernel, cuLaunchKernel,                                                                       \
       (handle_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle_t, void **,   \
        void **))                                                                                            \
  CALL(cuLaunchKernelEx, cuLaunchKernelEx, (const struct launch_config *, handle_t, void **, void **))

#define DECLARE(name, base, types)                                                                           \
  extern int name types;                                                                                     \
  static int(*do_##name) types;
#ifdef LINKED
FUNCTIONS(DECLARE)
#else
#define ONLY_POINTER(name, base, types) static int(*do_##name) types;
FUNCTIONS(ONLY_POINTER)
#endif

#ifndef LINKED
static void *found(void *function, const char *name) {
  if (function == NULL) {
    fprintf(stderr, "no %s\n", name);
    exit(2);
  }
  return function;
}
#endif

static void find(const char *how) {
#ifdef LINKED
#define LINK(name, base, types) do_##name = name;
  FUNCTIONS(LINK)
#else
  void *library = found(dlopen(getenv("DRIVER"), RTLD_NOW), "driver");
  if (strcmp(how, "dlsym") == 0) {
#define LOOK(name, base, types) *(void **)&do_##name = found(dlsym(library, #name), #name);
    FUNCTIONS(LOOK)
    return;
  }
  int (*get)(const char *, void **, int, uint64_t, int *);
  *(void **)&get = found(dlsym(library, "cuGetProcAddress_v2"), "cuGetProcAddress_v2");
  void *function = NULL;
  /* The function gives itself, too. */
  if (get("cuGetProcAddress", &function, 12000, 0, NULL) != 0)
    exit(2);
  *(void **)&get = found(function, "cuGetProcAddress");
  /* A later version of this one takes more. */
#define VERSION(base) (strcmp(base, "cuCtxCreate") == 0 ? 11030 : 12000)
#define ASK(name, base, types)                                                                               \
  if (get(#base, &function, VERSION(#base), 0, NULL) != 0)                                                   \
    exit(2);                                                                                                 \
  *(void **)&do_##name = found(function, #base);
  FUNCTIONS(ASK)
#endif
  (void)how;
}

static const char PTX[] = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";

/* What has a number on the input. */
static address_t values[64];
static size_t lengths[64];

/* The kernel that does nothing, where the driver is the stand-in. */
static void nothing(const void *call) { (void)call; }

static handle_t kernel(void) {
  static handle_t function;
  if (function == NULL) {
    int (*body)(const char *, void (*)(const void *));
    *(void **)&body = dlsym(dlopen(getenv("DRIVER"), RTLD_NOW), "larder_stand_in_kernel");
    if (body != NULL)
      body("nothing", nothing);
    handle_t module = NULL;
    if (do_cuModuleLoadData(&module, PTX) != 0 || do_cuModuleGetFunction(&function, module, "nothing") != 0)
      exit(2);
  }
  return function;
}

/* The next call of a function does nothing and says that something went wrong, where the driver is the stand-in. */
static int refuse(const char *function) {
  int (*fail)(const char *, uint64_t, uint64_t, unsigned);
  *(void **)&fail = dlsym(dlopen(getenv("DRIVER"), RTLD_NOW), "larder_stand_in_fail");
  return fail(function, 0, 1, 999);
}

/* How often a function was called, where the driver is the stand-in. */
static uint64_t calls(const char *function) {
  uint64_t (*count)(const char *);
  *(void **)&count = dlsym(dlopen(getenv("DRIVER"), RTLD_NOW), "larder_stand_in_calls");
  return count(function);
}

/* Calls a function of one argument that headers name no more, by its name alone. */
static int call_old(const char *function, handle_t handle) {
  int (*old)(handle_t);
  *(void **)&old = dlsym(dlopen(getenv("DRIVER"), RTLD_NOW), function);
  return old(handle);
}

#define IS(word) (strcmp(name, word) == 0)

/* Makes one call; what the driver says. `a` and `b` are numbers of values, lengths or devices. */
static int call(const char *name, size_t a, size_t b, size_t c) {
  address_t *value = &values[a % 64];
  handle_t handle = (handle_t)*value;
  if (IS("retain")) return do_cuDevicePrimaryCtxRetain((handle_t *)value, (int)b);
  if (IS("release")) return do_cuDevicePrimaryCtxRelease_v2((int)a);
  if (IS("reset")) return do_cuDevicePrimaryCtxReset_v2((int)a);
  if (IS("context")) return do_cuCtxCreate_v2((handle_t *)value, 0, (int)b);
  if (IS("destroy")) return do_cuCtxDestroy_v2(handle);
  if (IS("destroy-v1")) return call_old("cuCtxDestroy", handle);
  if (IS("end-stream-v1")) return call_old("cuStreamDestroy", handle);
  if (IS("current")) return do_cuCtxSetCurrent(handle);
  if (IS("finish")) return do_cuCtxSynchronize();
  if (IS("stream")) return do_cuStreamCreate((handle_t *)value, 1);
  if (IS("end-stream")) return do_cuStreamDestroy_v2(handle);
  if (IS("capture")) return do_cuStreamBeginCapture_v2(handle, 0);
  if (IS("captured")) {
    handle_t graph = NULL;
    int code = do_cuStreamEndCapture(handle, &graph);
    return code != 0 ? code : do_cuGraphInstantiateWithFlags((handle_t *)&values[b], graph, 0);
  }
  if (IS("graph")) return do_cuGraphLaunch(handle, (handle_t)values[b]);
  if (IS("alloc")) return lengths[a] = b, do_cuMemAlloc_v2(value, b);
  if (IS("managed")) return do_cuMemAllocManaged(value, b, 1);
  if (IS("pitch")) {
    size_t pitch = 0;
    return do_cuMemAllocPitch_v2(value, &pitch, b, c, 4);
  }
  if (IS("free")) return do_cuMemFree_v2(*value);
  if (IS("async")) return lengths[a] = b, do_cuMemAllocAsync(value, b, (handle_t)values[c]);
  if (IS("from-pool")) return do_cuMemAllocFromPoolAsync(value, 1 << 20, (handle_t)values[b], (handle_t)values[c]);
  if (IS("free-async")) return do_cuMemFreeAsync(*value, (handle_t)values[b]);
  if (IS("pool")) {
    struct pool_props props = {.type = 1, .location = {1, (int)b}};
    uint64_t all = UINT64_MAX;
    int code = do_cuMemPoolCreate((handle_t *)value, &props);
    /* It keeps what is freed. */
    return code != 0 ? code : do_cuMemPoolSetAttribute((handle_t)*value, 4, &all);
  }
  if (IS("end-pool")) return do_cuMemPoolDestroy(handle);
  if (IS("trim")) return do_cuMemPoolTrimTo(handle, 0);
  if (IS("create")) {
    struct allocation_prop props = {.type = 1, .location = {1, (int)c}};
    return lengths[a] = b, do_cuMemCreate(value, b, &props, 0);
  }
  if (IS("let-go")) return do_cuMemRelease(*value);
  if (IS("hold")) return do_cuMemRetainAllocationHandle(value, (void *)values[b]);
  if (IS("reserve")) return do_cuMemAddressReserve(value, b, 0, 0, 0);
  if (IS("map")) return do_cuMemMap(*value, lengths[b], 0, values[b], 0);
  if (IS("unmap")) return do_cuMemUnmap(*value, b);
  if (IS("access")) {
    struct access access = {{1, 0}, 3};
    return do_cuMemSetAccess(*value, b, &access, 1);
  }
  if (IS("fill")) return do_cuMemsetD8Async(*value, (unsigned char)b, lengths[a], (handle_t)values[c]);
  if (IS("launch")) return do_cuLaunchKernel(kernel(), 1, 1, 1, 1, 1, 1, 0, handle, NULL, NULL);
  if (IS("launch-ex")) {
    struct launch_config config = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = handle};
    return do_cuLaunchKernelEx(&config, kernel(), NULL, NULL);
  }
  fprintf(stderr, "no call %s\n", name);
  exit(2);
}

int main(int count, char **arguments) {
  (void)count;
  setvbuf(stdout, NULL, _IOLBF, 0);
  find(arguments[1]);
  do_cuInit(0);
  char line[256], name[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    size_t a = 0, b = 0, c = 0;
    sscanf(line, "%63s %zu %zu %zu", name, &a, &b, &c);
    if (IS("refuse")) {
      sscanf(line, "%*s %63s", name);
      printf("%d\n", refuse(name));
    } else if (IS("calls")) {
      sscanf(line, "%*s %63s", name);
      printf("%llu\n", (unsigned long long)calls(name));
    } else if (IS("info")) {
      size_t free = 0, total = 0;
      int code = do_cuMemGetInfo_v2(&free, &total);
      printf("%d %zu %zu\n", code, free, total);
    } else if (IS("total")) {
      size_t total = 0;
      int code = do_cuDeviceTotalMem_v2(&total, (int)a);
      printf("%d %zu\n", code, total);
    } else if (IS("first")) {
      unsigned char byte = 0;
      int code = do_cuMemcpyDtoH_v2(&byte, values[a], 1);
      printf("%d %d\n", code, byte);
    } else {
      printf("%d\n", call(name, a, b, c));
    }
  }
  return 0;
}
