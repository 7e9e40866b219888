// What the files of the driver share: what there is, and what calls say of it.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../emulator/emulator.h"
#include "order.h"

namespace fake {

struct Node {
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS params;
    std::vector<char> block;  // what the kernel would receive
    std::vector<CUgraphNode> waits;
    CUevent event = nullptr;  // of a node that records one
    int priority = 0;
    CUgraphNode early = nullptr;                         // that it may begin beside
    std::vector<std::pair<CUhostFn, void*>> calls = {};  // of a node that is a graph of such
};
struct Graph {
    std::vector<CUgraphNode> nodes;
    std::vector<std::pair<CUhostFn, void*>> calls = {};  // captured
};

inline std::recursive_mutex lock;
// As long as the process: a step in a global of a program ends after what this library would end.
inline auto &device = *new std::map<uintptr_t, size_t>, &pinned = *new std::map<uintptr_t, size_t>;
using Handles = std::set<void*>;
inline Handles &streams = *new Handles, &events = *new Handles, &modules = *new Handles,
               &graphs = *new Handles, &execs = *new Handles;
inline auto& order = *new Order;
/// Of a stream that is captured: its number; the graph, if it is a relaxed capture into one.
struct Capture {
    cuuint64_t number = 0;
    CUgraph graph = nullptr;
};
inline auto& captures = *new std::map<CUstream, Capture>;
inline thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
/// Whether this thread may make no call that a capture would not see.
inline bool is_strict() {
    return capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
           std::any_of(captures.begin(), captures.end(),
                       [](const auto& one) { return !one.second.graph; });
}
/// The default streams are always there.
inline bool lives(CUstream stream) {
    return reinterpret_cast<uintptr_t>(stream) <= 2 || streams.count(stream);
}
inline auto& recorded = *new std::map<CUevent, double>;           // when, in milliseconds
inline auto& functions = *new std::map<CUfunction, std::string>;  // with its name
inline auto& exec_ids = *new std::map<const void*, uint32_t>;
inline uint32_t last_exec_id = 0;
// Who is told of the kernels of each graph launch: the id of the graph, their names in the order of
// the nodes, from when to when each ran in nanoseconds of the real time.
using Watch = void (*)(uint32_t, size_t, const char* const*, const uint64_t*, const uint64_t*);
inline Watch watch = nullptr;
inline auto& orders =
    *new std::map<CUgraphExec, std::vector<CUgraphNode>>;  // in which nodes were added
const auto kContext = reinterpret_cast<CUcontext>(2);
inline thread_local int current_contexts = 0;  // of this thread
inline int contexts = 0, calls = 0;
inline int early = 0, urgent = 0;              // programmatic edges, and nodes of a priority
inline int crossings = 0;                      // launches of a graph behind another stream's
inline std::vector<std::vector<char>> blocks;  // that nodes were given, in that order
inline auto& last_blocks = *new std::map<CUstream, std::vector<char>>;  // of the last kernels

int number(const char* name, int otherwise);  // of the environment
[[noreturn]] void broken(const char* what);
bool fails(const char* name);  // whether this call is one that shall

template <class T>
T read(const char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}
struct Span {
    uintptr_t begin, end;
    bool write;
};
/// The bytes that a kernel with this argument block may touch: operands (inputs first) and
/// workspace.
std::vector<Span> spans_of(const char* block);
void check_block(const char* block);  // that all of them are alive
void use_block(const char* block, CUstream stream);
void check_size(CUfunction function, unsigned blocks, unsigned threads, unsigned shared);
void run_kernel(CUfunction function, unsigned blocks, unsigned threads, size_t shared,
                const void* block, const std::vector<emulated::Bytes>& unsettled = {});

}  // namespace fake

#define LOCK std::lock_guard<std::recursive_mutex> guard(lock)
#define MAY_FAIL         \
    LOCK;                \
    if (fails(__func__)) \
    return static_cast<CUresult>(number("FAKE_CUDA_CODE", CUDA_ERROR_OUT_OF_MEMORY))
#define NEED_CONTEXT \
    if (current_contexts <= 0) broken("a call without a current context")
/// What a driver refuses, and ends the capture for.
#define NOT_IN_CAPTURE(what) \
    if (is_strict()) broken(what " while a stream is captured")
