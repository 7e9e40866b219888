// Runs kernels that were compiled for the host, for the fake driver.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace emulated {

struct Size {
    unsigned blocks, threads;
    size_t shared;  // dynamic, in bytes
};
struct Kernel {
    void* library;
    void (*entry)(const void* block);
    unsigned cluster;  // blocks that run together
    std::string name;
};

/// A library of kernels, from its bytes; ends the process where it is none.
void* load(const void* image);
void unload(void* library);
Kernel kernel_of(void* library, const char* name);
struct Bytes {
    char* from;
    size_t count;
};
/// Runs a kernel to its end. Blocks run one after another, a block that waits for others beside
/// them; threads of a block in turn, each until it waits. EMULATED_ORDER=n, not 0, shuffles both.
/// `unsettled`: what a kernel wrote that may still run when this one begins. A cluster finds
/// it there once one of its threads has waited for that kernel, and NaN before.
void run(const Kernel& kernel, const void* block, Size size, const std::vector<Bytes>& unsettled);
/// Bytes of static shared memory, of what has run.
size_t static_shared(const Kernel& kernel);
/// True for the images that load() takes, false for those of a GPU.
bool is_host(const void* image);

}  // namespace emulated
