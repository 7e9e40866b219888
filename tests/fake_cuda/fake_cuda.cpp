// A driver for tests that has no GPU: exports the cu* symbols that aicf loads, under the name
// libcuda.so.1. Device memory is host memory; kernels do nothing, but for those compiled for the
// host (../emulator), which run where they are launched. It checks what a real driver
// would only crash on: liveness of every byte a kernel may touch, an edge for every data hazard of
// a graph, contexts, the order of streams. FAKE_CUDA_FAIL=k makes the k-th call that can fail
// return FAKE_CUDA_CODE (out of memory), FAKE_CUDA_CALL=name the first call of that name, and
// fake_cuda_arm() those that ask for memory; at exit a line says what was never given back.
#include <cuda.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../emulator/api.h"
#include "../emulator/emulator.h"
#include "core/abi/abi.h"
#include "state.h"

namespace fake {

auto& libraries = *new std::map<CUmodule, void*>;  // of kernels for the host
auto& codes = *new std::map<CUfunction, emulated::Kernel>;
auto& most_shared = *new std::map<CUfunction, unsigned>;
long armed_at = 0, armed_calls = 0;  // among the calls that ask for memory
bool armed = false, armed_rest = false;

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

[[noreturn]] void broken(const char* what) {
    std::fprintf(stderr, "fake driver: %s\n", what);
    std::abort();
}

/// True for the calls that may find no memory on a real driver.
bool asks_for_memory(const char* name) {
    for (const char* begin :
         {"cuMemAlloc", "cuStreamCreate", "cuEventCreate", "cuModuleLoad", "cuFuncLoad",
          "cuGraphCreate", "cuGraphAdd", "cuGraphInstantiate", "cuGraphUpload"})
        if (std::strncmp(name, begin, std::strlen(begin)) == 0) return true;
    return false;
}

std::map<std::string, int>& by_name() {
    static auto& counts = *new std::map<std::string, int>;
    return counts;
}

/// True when this call is the one that shall fail; after an error that loses the device, always.
bool fails(const char* name) {
    static const int k = number("FAKE_CUDA_FAIL", 0);
    static const char* wanted = std::getenv("FAKE_CUDA_CALL");
    static bool failed = false;
    calls++;
    by_name()[name]++;
    const bool lost = failed && number("FAKE_CUDA_CODE", 2) == CUDA_ERROR_ILLEGAL_ADDRESS;
    bool now = calls == k || (wanted && !failed && std::strcmp(wanted, name) == 0);
    if (armed && asks_for_memory(name)) {
        armed_calls++;
        now |= armed_at && (armed_rest ? armed_calls >= armed_at : armed_calls == armed_at);
    }
    failed |= now;
    return now || lost;
}

struct Report {
    ~Report() {
        if (!std::getenv("FAKE_CUDA_REPORT")) return;
        std::fprintf(stderr,
                     "fake driver: calls %d device %zu events %zu streams %zu graphs %zu execs %zu "
                     "contexts %d early %d urgent %d\n",
                     calls, device.size(), events.size(), streams.size(), graphs.size(),
                     execs.size(), contexts, early, urgent);
    }
} report;

size_t uploaded = 0;  // bytes, by all copies from the host

constexpr size_t kPage = 4096, kAlignment = 256;  // of allocations, as a driver's
size_t pages_of(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/// Memory up to a page that nobody may touch, so that what reads past it does not go on.
char* allocate(size_t bytes) {
    // Or each right behind the one before, as a device's pool may have it; never given back.
    static const size_t room = size_t(number("FAKE_CUDA_NEIGHBOURS", 0));
    if (room) {
        static char* next =
            static_cast<char*>(mmap(nullptr, room, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        char* const at = next;
        next += (bytes + kAlignment - 1) / kAlignment * kAlignment;
        return at;
    }
    const size_t size = pages_of(bytes);
    void* const pages = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) broken("no memory for an allocation");
    char* const end = static_cast<char*>(pages) + size;
    mprotect(end, kPage, PROT_NONE);
    return end - (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
void release(char* memory, size_t bytes) {
    if (number("FAKE_CUDA_NEIGHBOURS", 0)) return;
    const size_t size = pages_of(bytes);
    char* const end = memory + (bytes + kAlignment - 1) / kAlignment * kAlignment;
    munmap(end - size, size + kPage);
}

bool within(const std::map<uintptr_t, size_t>& memory, uintptr_t at, size_t bytes) {
    auto block = memory.upper_bound(at);
    if (block == memory.begin()) return false;
    --block;
    return at + bytes <= block->first + block->second;
}
bool alive(uintptr_t at, size_t bytes) { return within(device, at, bytes); }

std::vector<Span> spans_of(const char* block) {
    constexpr int64_t sizes[aicf::kDTypes] = {4, 8, 2, 2, 4, 8, 1, 1, 1, 2};
    std::vector<Span> spans;
    const int inputs = read<uint16_t>(block + 4), outputs = read<uint16_t>(block + 6);
    const auto workspace = read<uintptr_t>(block + 16);
    if (const auto bytes = read<uint64_t>(block + 24))
        spans.push_back({workspace, workspace + bytes, true});
    for (int i = 0; i < inputs + outputs; i++) {
        const char* operand = block + read<uint32_t>(block + 32 + 4 * i);
        const auto pointer = read<uintptr_t>(operand);
        const int64_t size = sizes[read<int32_t>(operand + 8)];
        const int rank = read<int32_t>(operand + 12);
        int64_t low = 0, high = 0;
        bool empty = false;
        for (int d = 0; d < rank; d++) {
            const auto extent = read<int64_t>(operand + 16 + 8 * d);
            const auto stride = read<int64_t>(operand + 16 + 8 * (rank + d));
            empty |= extent == 0;
            (stride < 0 ? low : high) += stride * (extent - 1);
        }
        if (!empty)
            spans.push_back({pointer + static_cast<uintptr_t>(low * size),
                             pointer + static_cast<uintptr_t>((high + 1) * size), i >= inputs});
    }
    return spans;
}

void check_block(const char* block) {
    for (const Span& span : spans_of(block))
        if (!alive(span.begin, span.end - span.begin) &&
            (span.write || !within(pinned, span.begin, span.end - span.begin)))
            broken("a kernel may touch memory that is not alive");
}

void use(uintptr_t at, CUstream stream) {
    if (!order.use(at, stream))
        broken("memory used on a stream that nothing orders behind its allocation");
}
/// A copy between the host and the device, which `writes` the device's memory or reads it.
void copied(const void* host, size_t bytes, uintptr_t at, bool writes, CUstream stream) {
    if (!order.copy(at, bytes, writes, stream))
        broken("a copy that nothing orders behind one of the same memory");
    const auto begin = reinterpret_cast<uintptr_t>(host);
    if (within(pinned, begin, bytes) && !order.host_copy(begin, bytes, stream))
        broken("pinned memory used by the host while a copy may still be under way");
}
void use_block(const char* block, CUstream stream) {
    for (const Span& span : spans_of(block)) use(span.begin, stream);
    const auto workspace = read<uintptr_t>(block + 16);
    if (read<uint64_t>(block + 24) && !order.borrow(workspace, stream))
        broken("a workspace on a stream that nothing orders behind another one's use");
}

/// Shared memory that a block may have, in bytes.
size_t most_of_a_block() { return (number("FAKE_CUDA_MAJOR", 9) >= 9 ? 227 : 163) * size_t{1024}; }

void check_size(CUfunction function, unsigned blocks, unsigned threads, unsigned shared) {
    if (!functions.count(function)) broken("a launch of no function");
    const auto asked = most_shared.find(function);
    constexpr unsigned unasked = 40 << 10;  // of 48 KiB, with what a body may declare
    if (!blocks || !threads || threads > 1024 ||
        shared > (asked == most_shared.end() ? unasked : asked->second))
        broken("a launch of impossible size");
}

void run_kernel(CUfunction function, unsigned blocks, unsigned threads, size_t shared,
                const void* block, const std::vector<emulated::Bytes>& unsettled) {
    const auto code = codes.find(function);
    if (code == codes.end()) return;
    const auto bytes = read<uint32_t>(static_cast<const char*>(block));
    void* const aligned = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    std::memcpy(aligned, block, bytes);
    emulated::run(code->second, aligned, {blocks, threads, shared}, unsettled);
    std::free(aligned);
    if (shared + emulated::static_shared(code->second) > most_of_a_block())
        broken("more shared memory than a block has, dynamic and static");
}

/// The device's memory whose address a kernel is given, by whole allocations.
std::vector<emulated::Bytes> known_to(const std::vector<char>& block) {
    std::set<uintptr_t> begins;
    for (size_t at = 0; at + 8 <= block.size(); at += 8) {
        const auto held = device.upper_bound(read<uintptr_t>(block.data() + at));
        if (held != device.begin() && alive(read<uintptr_t>(block.data() + at), 1))
            begins.insert(std::prev(held)->first);
    }
    std::vector<emulated::Bytes> bytes;
    for (const uintptr_t begin : begins)
        bytes.push_back({reinterpret_cast<char*>(begin), device.at(begin)});
    return bytes;
}

}  // namespace fake

using namespace fake;

extern "C" {

/// Of the calls from now on that ask for memory the k-th fails, and with `rest` all after it.
void fake_cuda_arm(long k, int rest) {
    LOCK;
    armed = true;
    armed_at = k;
    armed_rest = rest != 0;
    armed_calls = 0;
}
/// Returns how many of them there were.
long fake_cuda_disarm() {
    LOCK;
    armed = false;
    return armed_calls;
}
/// How many pieces of device memory, events, streams and graphs are not given back.
long fake_cuda_held() {
    LOCK;
    return static_cast<long>(device.size() + events.size() + streams.size() + graphs.size() +
                             execs.size());
}

/// How many programmatic edges graphs were given.
int fake_cuda_early() {
    LOCK;
    return early;
}
/// The block that a node was given as the i-th one; null behind the last.
const char* fake_cuda_block(size_t i) {
    LOCK;
    return i < blocks.size() ? blocks[i].data() : nullptr;
}
/// The block of the kernel that was launched last on a stream.
const char* fake_cuda_last_block(CUstream stream) {
    LOCK;
    return last_blocks.at(stream).data();
}
/// How many launches of a graph came behind one on another stream.
int fake_cuda_crossings() {
    LOCK;
    return crossings;
}
size_t fake_cuda_uploaded() {
    LOCK;
    return uploaded;
}

/// How often a function was called.
int fake_cuda_count(const char* name) {
    LOCK;
    return by_name()[name];
}

/// How many nodes of the graphs there are wait for no other.
long fake_cuda_roots() {
    LOCK;
    long roots = 0;
    for (void* graph : graphs)
        for (CUgraphNode node : reinterpret_cast<Graph*>(graph)->nodes)
            roots += reinterpret_cast<Node*>(node)->waits.empty();
    return roots;
}

void fake_cuda_watch(Watch who) {
    LOCK;
    watch = who;
}

uint32_t fake_cuda_exec_id(const void* exec) {
    LOCK;
    return exec_ids.at(exec);
}

CUresult cuInit(unsigned) { return static_cast<CUresult>(number("FAKE_CUDA_INIT", 0)); }
CUresult cuDriverGetVersion(int* version) {
    *version = number("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
    *count = number("FAKE_CUDA_DEVICES", 1);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device_out, int index) {
    *device_out = index;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
    std::snprintf(name, static_cast<size_t>(size), "Fake GPU");
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice) {
    *value = which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR   ? number("FAKE_CUDA_MAJOR", 9)
             : which == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR ? 0
             : which == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
                 ? number("FAKE_CUDA_PROCESSORS", 132)
                 : 232448;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice) {
    *pool = reinterpret_cast<CUmemoryPool>(1);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    *context = kContext;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    LOCK;
    if (context != kContext) broken("an unknown context is pushed");
    contexts++;
    current_contexts++;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext*) {
    LOCK;
    if (--current_contexts < 0) broken("a context popped that is not there");
    contexts--;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    LOCK;
    *context = current_contexts > 0 ? kContext : nullptr;
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext) {
    LOCK;
    contexts++;
    current_contexts++;
    return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** name) {
    *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "as the test wants";
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
    *free = 1 << 20;
    *total = 1 << 30;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc_v2(CUdeviceptr* to, size_t bytes) {
    MAY_FAIL;
    NEED_CONTEXT;
    if (bytes > size_t(number("FAKE_CUDA_LARGEST", 1 << 30))) return CUDA_ERROR_OUT_OF_MEMORY;
    char* const memory = allocate(bytes);
    std::memset(memory, 0xff, bytes);
    device[reinterpret_cast<uintptr_t>(memory)] = bytes;
    *to = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr at) {
    LOCK;
    const auto block = device.find(static_cast<uintptr_t>(at));
    if (block == device.end()) broken("memory freed twice");
    if (!order.free(static_cast<uintptr_t>(at)))
        broken("memory freed that the device may still use");
    release(reinterpret_cast<char*>(at), block->second);
    device.erase(block);
    return CUDA_SUCCESS;
}
CUresult cuMemAllocAsync(CUdeviceptr* to, size_t bytes, CUstream stream) {
    LOCK;
    if (!lives(stream)) broken("an allocation on a dead stream");
    NOT_IN_CAPTURE("an allocation");
    const CUresult result = cuMemAlloc_v2(to, bytes);
    if (result == CUDA_SUCCESS) order.allocate(static_cast<uintptr_t>(*to), bytes, stream);
    return result;
}
CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
    LOCK;
    NEED_CONTEXT;
    if (!lives(stream)) broken("memory freed on a dead stream");
    if (!order.free(static_cast<uintptr_t>(at), stream))
        broken("memory freed on a stream that nothing orders behind another one's use");
    return cuMemFree_v2(at);
}
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t) { return CUDA_SUCCESS; }
CUresult cuMemPoolGetAttribute(CUmemoryPool, CUmemPool_attribute, void* value) {
    *static_cast<uint64_t*>(value) = 0;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocHost_v2(void** to, size_t bytes) {
    MAY_FAIL;
    NOT_IN_CAPTURE("an allocation of pinned memory");
    *to = std::malloc(bytes);
    pinned[reinterpret_cast<uintptr_t>(*to)] = bytes;
    return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* at) {
    LOCK;
    pinned.erase(reinterpret_cast<uintptr_t>(at));
    std::free(at);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    MAY_FAIL;
    uploaded += bytes;
    if (!alive(static_cast<uintptr_t>(to), bytes)) broken("a copy into memory that is not alive");
    use(static_cast<uintptr_t>(to), stream);
    copied(from, bytes, static_cast<uintptr_t>(to), true, stream);
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    MAY_FAIL;
    if (!alive(static_cast<uintptr_t>(from), bytes)) broken("a copy from memory that is not alive");
    use(static_cast<uintptr_t>(from), stream);
    copied(to, bytes, static_cast<uintptr_t>(from), false, stream);
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    MAY_FAIL;
    if (!alive(static_cast<uintptr_t>(to), bytes)) broken("a copy into memory that is not alive");
    use(static_cast<uintptr_t>(to), stream);
    use(static_cast<uintptr_t>(from), stream);
    if (!order.copy(static_cast<uintptr_t>(from), bytes, false, stream) ||
        !order.copy(static_cast<uintptr_t>(to), bytes, true, stream))
        broken("a copy that nothing orders behind one of the same memory");
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream) {
    MAY_FAIL;
    if (!alive(static_cast<uintptr_t>(to), bytes)) broken("a fill of memory that is not alive");
    use(static_cast<uintptr_t>(to), stream);
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    MAY_FAIL;
    NOT_IN_CAPTURE("a new stream");
    *stream = reinterpret_cast<CUstream>(new char);
    streams.insert(*stream);
    order.create(*stream, flags != CU_STREAM_NON_BLOCKING);
    return CUDA_SUCCESS;
}
CUresult cuStreamDestroy_v2(CUstream stream) {
    LOCK;
    if (!streams.erase(stream)) broken("a stream destroyed twice");
    captures.erase(stream);
    delete reinterpret_cast<char*>(stream);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) {
    MAY_FAIL;
    if (!lives(stream)) broken("a dead stream synchronised");
    if (captures.count(stream)) broken("a wait for a stream that is captured");
    order.host_waits(stream);
    return CUDA_SUCCESS;
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
    MAY_FAIL;
    if (!events.count(event)) broken("a dead event waited for");
    if (!lives(stream)) broken("a dead stream waits");
    if (captures.count(stream)) broken("a captured stream waits for what is not captured");
    order.wait(stream, event);
    return CUDA_SUCCESS;
}
/// What a stream gets from here on belongs to the capture of that number; 0: to none.
void fake_cuda_capture(CUstream stream, unsigned long long number) {
    LOCK;
    captures.erase(stream);
    if (number) captures[stream] = {number};
}
#undef cuStreamGetCaptureInfo
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status,
                                cuuint64_t* number) {
    LOCK;
    const auto found = captures.find(stream);
    *status =
        found == captures.end() ? CU_STREAM_CAPTURE_STATUS_NONE : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    *number = found == captures.end() ? 0 : found->second.number;
    return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    LOCK;
    std::swap(*mode, capture_mode);
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    MAY_FAIL;
    NEED_CONTEXT;
    order.host_waits();
    return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    MAY_FAIL;
    NEED_CONTEXT;
    *least = 0;
    *greatest = -5;
    return CUDA_SUCCESS;
}
CUresult cuEventCreate(CUevent* event, unsigned) {
    MAY_FAIL;
    *event = reinterpret_cast<CUevent>(new char);
    events.insert(*event);
    order.create(*event);
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy_v2(CUevent event) {
    LOCK;
    if (!events.erase(event)) broken("an event destroyed twice");
    for (void* exec : execs)
        for (const auto& [node, held] : *reinterpret_cast<std::map<CUgraphNode, Node>*>(exec))
            if (held.event == event) broken("an event of a living graph destroyed");
    recorded.erase(event);
    delete reinterpret_cast<char*>(event);
    return CUDA_SUCCESS;
}
#undef cuEventElapsedTime  // drivers before CUDA 12.8 have it under this name alone
CUresult cuEventElapsedTime(float* milliseconds, CUevent first, CUevent then) {
    MAY_FAIL;
    if (!recorded.count(first) || !recorded.count(then)) broken("the time of no recorded event");
    *milliseconds = static_cast<float>(recorded[then] - recorded[first]);
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
    MAY_FAIL;
    if (!events.count(event)) broken("a dead event recorded");
    if (!lives(stream)) broken("an event recorded on a dead stream");
    order.record(event, stream);
    return CUDA_SUCCESS;
}
CUresult cuEventSynchronize(CUevent event) {
    MAY_FAIL;
    order.host_waits(event);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    MAY_FAIL;
    NEED_CONTEXT;
    NOT_IN_CAPTURE("a module loaded");
    if (std::memcmp(image, "\177ELF", 4) != 0) broken("a module that is no cubin");
    *module = reinterpret_cast<CUmodule>(new char);
    modules.insert(*module);
    if (emulated::is_host(image)) libraries[*module] = emulated::load(image);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
    LOCK;
    modules.erase(module);
    if (const auto held = libraries.find(module); held != libraries.end()) {
        std::erase_if(codes, [&](const auto& one) { return one.second.library == held->second; });
        emulated::unload(held->second);
        libraries.erase(held);
    }
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    MAY_FAIL;
    if (!modules.count(module)) broken("a function of a dead module");
    *function = reinterpret_cast<CUfunction>(new char);
    functions[*function] = name;
    if (const auto held = libraries.find(module); held != libraries.end())
        codes[*function] = emulated::kernel_of(held->second, name);
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
    LOCK;
    if (which == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value > static_cast<int>(most_of_a_block())) return CUDA_ERROR_INVALID_VALUE;
        most_shared[function] = static_cast<unsigned>(value);
    }
    return CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction) {
    MAY_FAIL;
    return CUDA_SUCCESS;
}
static CUresult launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, CUstream stream,
                       void** parameters, bool early) {
    if (gy != 1 || gz != 1 || by != 1 || bz != 1) broken("a launch of impossible size");
    check_size(function, gx, bx, shared);
    if (!lives(stream)) broken("a launch on a dead stream");
    const char* const block = static_cast<const char*>(parameters[0]);
    check_block(block);
    use_block(block, stream);
    std::vector<char>& before = last_blocks[stream];  // may still run where this one is early
    run_kernel(function, gx, bx, shared, block,
               early ? known_to(before) : std::vector<emulated::Bytes>{});
    before.assign(block, block + read<uint32_t>(block));
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, CUstream stream,
                        void** parameters, void**) {
    MAY_FAIL;
    NEED_CONTEXT;
    return launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, false);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void**) {
    MAY_FAIL;
    NEED_CONTEXT;
    if (config->numAttrs > 1) broken("a launch with attributes that nobody has asked for");
    return launch(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                  config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream,
                  parameters, config->numAttrs == 1);
}
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* at, const cuuint64_t* sizes, const cuuint64_t* steps,
                                const cuuint32_t* box, const cuuint32_t* each,
                                CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    MAY_FAIL;
    const auto from = reinterpret_cast<uintptr_t>(at);
    const bool rounds = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    const cuuint64_t size = rounds ? 4 : 2;
    uintptr_t end = from + size * sizes[0];
    if (reinterpret_cast<uintptr_t>(map) % 64 != 0) broken("a tensor map at an odd place");
    if (from % 16 != 0 || rank != 3) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t d = 0; d < rank; d++) {
        if (sizes[d] == 0 || sizes[d] >> 32 || box[d] == 0 || box[d] > 256 || each[d] != 1 ||
            (d > 0 && (steps[d - 1] % 16 != 0 || steps[d - 1] >> 40)))
            return CUDA_ERROR_INVALID_VALUE;
        if (d > 0) end += (sizes[d] - 1) * steps[d - 1];
    }
    const unsigned line = swizzle == CU_TENSOR_MAP_SWIZZLE_128B  ? 128
                          : swizzle == CU_TENSOR_MAP_SWIZZLE_64B ? 64
                                                                 : 0;
    if (line == 0 || size * box[0] > line) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(from, end - from)) broken("a tensor map of memory that is not alive");
    const emulated::Map described{static_cast<const char*>(at),
                                  {sizes[0], sizes[1], sizes[2]},
                                  {steps[0], steps[1]},
                                  {box[0], box[1], box[2]},
                                  static_cast<unsigned>(size),
                                  rounds,
                                  line};
    std::memset(map, 0xa5, sizeof *map);
    std::memcpy(map, &described, sizeof described);
    return CUDA_SUCCESS;
}

}  // extern "C"
