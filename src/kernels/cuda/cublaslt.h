// Products by NVIDIA's cuBLASLt, found at run time: candidates that somebody has asked for. Their
// bits are those of one version of the library on one kind of device.
#pragma once

#include <string>
#include <vector>

#include "core/run/backend.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/target.h"

namespace aicf::cuda {

/// Bytes of scratch that a product may have there.
constexpr uint64_t kLibraryWorkspace = 32 << 20;
/// What the addresses of its operands are multiples of.
constexpr uint32_t kLibraryAlign = 16;

/// The product of an op whose candidate is the library's (is_foreign()), with the algorithm that
/// it says; GraphError where the op is none, or the name says nothing.
std::shared_ptr<const LibraryProduct> library_product(const LoweredOp& op);
/// Unsupported unless the algorithm was found on such a device.
void check_device(const LibraryProduct& product, const std::string& arch, int processors);
uint64_t workspace_of(const LibraryProduct& product);
/// "cublasLt 13.1.0", as traces print it.
std::string name_of(const LibraryProduct& product);

/// Candidates for an op, what the library's heuristic says of this device, the best first; none of
/// an op that it does not compute. DeviceUnavailable where there is no library.
std::vector<std::string> library_candidates(const Gpu& gpu, const LoweredOp& op, int limit);

/// BoundOp::code of such a product. DeviceUnavailable where there is no library, Unsupported where
/// it has another version, or refuses the algorithm.
std::shared_ptr<const void> load_product(const Gpu& gpu, const LibraryProduct& product);
/// Unsupported unless its operands lie as it counts on.
void check_operands(const ArgBlock& args);
/// Enqueues it.
void run_product(const BoundOp& op, const ArgBlock& args, CUstream stream);
/// The same as a graph, to be copied.
std::shared_ptr<CUgraph_st> product_graph(const BoundOp& op, const ArgBlock& args);

}  // namespace aicf::cuda
