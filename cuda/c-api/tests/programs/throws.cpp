// Refusals as exceptions of C++, on a stand-in of 64 GiB. WITH_PYTORCH: in a process with PyTorch's exceptions.
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

#include "larder_cuda.h"

#ifdef WITH_PYTORCH
#include "c10.hpp"
using OutOfMemory = c10::OutOfMemoryError;
#else
using OutOfMemory = std::runtime_error;
#endif

static int wrong(const char *what) {
  std::fprintf(stderr, "%s; last error: %s\n", what, larder_cuda_last_error());
  return 1;
}

int main() {
  const ssize_t too_much = ssize_t(1) << 40;
  // As PyTorch holds them.
  std::function<void *(size_t, int, CUstream_st *)> torch_malloc = larder_cuda_malloc_or_throw;
  std::function<void(void *, size_t, int, CUstream_st *)> torch_free = larder_cuda_free;
  std::function<void(void *, CUstream_st *)> record_stream = larder_cuda_record_stream;
  std::function<void(double, int)> memory_fraction = larder_cuda_set_memory_fraction;
  std::function<void()> reset = larder_cuda_empty_cache;
  // As RMM holds them.
  std::function<void *(std::size_t, CUstream_st *, void *)> rmm_allocate = larder_cuda_rmm_allocate;
  std::function<void(void *, std::size_t, CUstream_st *, void *)> rmm_deallocate = larder_cuda_rmm_deallocate;
  void *const second = reinterpret_cast<void *>(1);

  if (torch_malloc(0, 0, nullptr) != nullptr)
    return wrong("a size of 0 gives null");
  std::string text;
  try {
    torch_malloc(too_much, 0, nullptr);
  } catch (const OutOfMemory &error) {
    text = error.what();
  }
#ifdef WITH_PYTORCH
  if (c10::Error::live != 0)
    return wrong("the exception was not destroyed once");
#endif
  if (text.rfind("CUDA out of memory. ", 0) != 0 || text != larder_cuda_last_error())
    return wrong("no exception with the text");
  try {
    torch_malloc(1, 7, nullptr);
    return wrong("there is no device 7");
  } catch (const std::runtime_error &) {
  }
  bool thrown = false;
  try {
    rmm_allocate(too_much, nullptr, second);
  } catch (const std::bad_alloc &) {
    thrown = true;
  }
  if (!thrown || std::strstr(larder_cuda_last_error(), "device 1") == nullptr)
    return wrong("no std::bad_alloc on device 1");
  void *given = rmm_allocate(1000, nullptr, second);
  if (given == nullptr)
    return wrong("no memory after an exception");
  rmm_deallocate(given, 1000, nullptr, second);
  given = torch_malloc(1000, 0, nullptr);
  record_stream(given, nullptr);
  torch_free(given, 1000, 0, nullptr);
  memory_fraction(0.5, 0);
  reset();
  larder_cuda_counters stats{};
  if (larder_cuda_stats(0, &stats, sizeof stats) != 0 || stats.limit_bytes != (uint64_t(32) << 30))
    return wrong("half of 64 GiB");
  if (stats.live_bytes != 0 || stats.reserved_bytes != 0 || stats.out_of_memory != 1)
    return wrong("counters");
  return 0;
}
