/* The few functions of the driver that the programs of these tests call, by name from the library that
 * LARDER_CUDA_STAND_IN names. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct CUstream_st *stream_t;

static void *driver;

static int must(int code, const char *what) {
  if (code != 0) {
    fprintf(stderr, "%s: %d\n", what, code);
    exit(2);
  }
  return code;
}

static void *entry(const char *name) {
  void *found = dlsym(driver, name);
  must(found == NULL, name);
  return found;
}

#define CALL(name, types, ...) must(((int (*) types)entry(name))(__VA_ARGS__), name)

/* Loads the driver. */
static void open_driver(void) {
  driver = dlopen(getenv("LARDER_CUDA_STAND_IN"), RTLD_NOW);
  must(driver == NULL, "dlopen");
  CALL("cuInit", (unsigned), 0);
}

/* Makes the context of a device current. */
static inline void use_device(int device) {
  void *context = NULL;
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
  CALL("cuCtxSetCurrent", (void *), context);
}

/* A stream of the current context, beside the default one. */
static inline stream_t new_stream(void) {
  stream_t stream = NULL;
  CALL("cuStreamCreate", (stream_t *, unsigned), &stream, 1);
  return stream;
}

/* Queues work that writes a block. */
static inline void fill(void *block, size_t bytes, stream_t stream) {
  CALL("cuMemsetD8Async", (unsigned long long, unsigned char, size_t, stream_t),
       (unsigned long long)block, 1, bytes, stream);
}

/* How much the stand-in found wrong. */
static inline unsigned long findings(void) {
  size_t (*count)(char *, size_t) = (size_t (*)(char *, size_t))entry("larder_stand_in_findings");
  char text[4096] = "";
  unsigned long length = count(text, sizeof text);
  if (length > 0)
    fprintf(stderr, "%s\n", text);
  return length;
}
