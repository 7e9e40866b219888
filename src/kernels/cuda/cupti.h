// When the kernels of launched graphs ran, as NVIDIA's CUPTI tells, which is found at run time and
// not loaded before somebody asks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/driver.h"

namespace aicf::cuda {

struct KernelRecord {
    double begin, end;     // seconds of the steady clock
    uint64_t node;         // rises in the order in which the nodes of a graph were made
    uint32_t correlation;  // equal for the kernels of one launch, rising from launch to launch
    uint32_t graph;
    const std::string* symbol;
};

/// While one lives CUPTI stays attached once it is.
class TracingHold {
  public:
    TracingHold();
    ~TracingHold();
    TracingHold(const TracingHold&) = delete;
    TracingHold& operator=(const TracingHold&) = delete;

  private:
    const int born_;
};

/// Attaches CUPTI where it is not, then does `work`, which launches graphs of so many kernels and
/// waits for them, and tells of the kernels of graphs that ran meanwhile in this process, others
/// among them. False, and no work done, where it cannot be attached. One thread at a time.
bool trace_kernels(const std::function<size_t()>& work, std::vector<KernelRecord>& records);
/// What CUPTI calls a graph; 0 where it does not say.
uint32_t traced_id(CUgraphExec graph);
/// CUPTI is not used again by this process: what it said was not understood.
void give_up_tracing(std::string why);
/// The file of the CUPTI that would be used, without loading it; "" where none is seen.
std::string tracing_file();
/// Why the last attempt failed; "" where it did not.
std::string tracing_problem();

}  // namespace aicf::cuda
