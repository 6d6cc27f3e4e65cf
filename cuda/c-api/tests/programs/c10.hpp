// PyTorch's exceptions, with the functions that PyTorch's libraries export and the fields of PyTorch 2.11.
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace c10 {

template <class T> class LazyValue;

class Error : public std::exception {
  std::string msg;
  std::vector<std::string> context;
  std::shared_ptr<const LazyValue<std::string>> backtrace;
  std::string *what_with_backtrace = nullptr;
  std::string what_without_backtrace;
  const void *caller;

public:
  static int live;
  Error(std::string msg, std::shared_ptr<const LazyValue<std::string>> backtrace, const void *caller);
  ~Error() override;
  const char *what() const noexcept override;
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

void throw_out_of_memory();

} // namespace c10
