// Ranges of NVIDIA's NVTX, which Nsight shows on the tracks of a program's threads.
#pragma once

#include <string>

namespace aicf::cuda {

/// NVTX 3 as functions of a library; where no tool listens they return at once.
class Nvtx {
  public:
    /// Unsupported where `path` cannot be opened or is another library.
    explicit Nvtx(const std::string& path);
    void push(const std::string& name) const { push_(name.c_str()); }
    void pop() const { pop_(); }

  private:
    int (*push_)(const char*);
    int (*pop_)();
};

}  // namespace aicf::cuda
