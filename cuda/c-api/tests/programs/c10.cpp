// Takes the place of libc10_cuda.so.
#include "c10.hpp"

namespace c10 {

int Error::live = 0;

Error::Error(std::string msg, std::shared_ptr<const LazyValue<std::string>> backtrace, const void *caller)
    : msg(std::move(msg)), backtrace(std::move(backtrace)), what_without_backtrace(this->msg), caller(caller) {
  live += 1;
}

Error::~Error() { live -= 1; }

const char *Error::what() const noexcept { return caller == nullptr ? what_without_backtrace.c_str() : "a caller"; }

// Puts the derived class's table into the library.
void throw_out_of_memory() { throw OutOfMemoryError("", nullptr, nullptr); }

} // namespace c10
