#include "kernels/cuda/cupti.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "core/base/error.h"
#include "core/base/fork.h"
#include "core/run/backend.h"
#include "kernels/cuda/library.h"

namespace aicf::cuda {

namespace {

using Request = void (*)(uint8_t** buffer, size_t* size, size_t* most_records);
using Complete = void (*)(CUcontext, uint32_t stream, uint8_t* buffer, size_t size, size_t valid);
using Callback = void (*)(void* data, int domain, uint32_t id, const void* call);

/// X(name, arguments): the functions of CUPTI that are used; all return 0 for success.
#define AICF_CUPTI(X)                                                               \
    X(GetVersion, (uint32_t* version))                                              \
    X(GetResultString, (int result, const char** text))                             \
    X(Subscribe, (void** subscriber, Callback callback, void* data))                \
    X(Unsubscribe, (void* subscriber))                                              \
    X(ActivityRegisterCallbacks, (Request request, Complete complete))              \
    X(ActivityEnable, (int kind))                                                   \
    X(ActivityDisable, (int kind))                                                  \
    X(ActivityFlushAll, (uint32_t flag))                                            \
    X(ActivityGetNextRecord, (uint8_t* buffer, size_t valid, const uint8_t** last)) \
    X(GetTimestamp, (uint64_t* nanoseconds))                                        \
    X(GetGraphExecId, (CUgraphExec graph, uint32_t* id))

constexpr int kConcurrentKernel = 10;  // of CUpti_ActivityKind
constexpr uint32_t kForced = 1;        // CUPTI_ACTIVITY_FLAG_FLUSH_FORCED
/// The record of a kernel grows at its end alone: offsets in bytes, equal in CUDA 12.4 to 13.5.
constexpr uint32_t kOldest = 22, kLastPlain = 28, kFirstLong = 130000, kNewest = 130599;
constexpr size_t kBegin = 16, kEnd = 24, kCorrelation = 92, kName = 104, kNode = 144, kGraph = 156;

struct Tracer {
#define AICF_MEMBER(name, arguments) int(*name) arguments = nullptr;
    AICF_CUPTI(AICF_MEMBER)
#undef AICF_MEMBER
    std::mutex lock;  // of all but what callbacks fill
    bool loaded = false;
    std::string missing;  // why it is not there to be attached, for good
    std::string problem;
    void* subscriber = nullptr;  // while attached
    int holds = 0;

    std::mutex records_lock;
    std::vector<KernelRecord> records;
    std::set<std::string> symbols;  // of all kernels so far: records point at them
    uint64_t known = 0;             // a time by CUPTI's clock, in nanoseconds since long ago
    double zero = 0;                // the same by the steady one
};

Tracer& tracer() {
    static Tracer& one = *new Tracer;  // for good: CUPTI may call back at any time
    return one;
}

template <class T>
T field(const uint8_t* record, size_t offset) {
    T value;
    std::memcpy(&value, record + offset, sizeof value);
    return value;
}

constexpr size_t kBufferBytes = 1 << 20;

void request(uint8_t** buffer, size_t* size, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(64, kBufferBytes));
    *size = *buffer ? kBufferBytes : 0;
    *most_records = 0;
}

void complete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    Tracer& t = tracer();
    try {
        std::lock_guard guard(t.records_lock);
        const uint8_t* record = nullptr;
        while (valid && t.ActivityGetNextRecord(buffer, valid, &record) == 0) {
            const auto node = field<uint64_t>(record, kNode);
            if (field<int>(record, 0) != kConcurrentKernel || node == 0) continue;
            const auto begin = field<uint64_t>(record, kBegin), end = field<uint64_t>(record, kEnd);
            const auto* name = field<const char*>(record, kName);
            const auto seconds = [&](uint64_t at) {  // a double cannot hold the whole number
                return t.zero + static_cast<double>(static_cast<int64_t>(at - t.known)) * 1e-9;
            };
            const char* symbol = begin && name ? name : "";
            t.records.push_back(
                {seconds(begin), seconds(end), node, field<uint32_t>(record, kCorrelation),
                 field<uint32_t>(record, kGraph), &*t.symbols.insert(symbol).first});
        }
    } catch (...) {  // no memory: whoever counts them finds that some are missing
    }
    std::free(buffer);
}

std::vector<std::string> places(int driver_major) {
    return library_files("libcupti.so.", {"cu13/lib", "cuda_cupti/lib"}, driver_major);
}

bool open_library(Tracer& t, const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    bool complete_table = true;
#define AICF_LOAD(name, arguments)                                              \
    t.name = reinterpret_cast<decltype(t.name)>(dlsym(library, "cupti" #name)); \
    complete_table &= t.name != nullptr;
    AICF_CUPTI(AICF_LOAD)
#undef AICF_LOAD
    return complete_table;
}

void load(Tracer& t) {
    t.loaded = true;
    const int driver_major = driver_version() / 1000, minor = driver_version() % 1000 / 10;
    bool found = false;
    for (const std::string& path : places(driver_major))
        if ((found = open_library(t, path))) break;
    if (!found) {
        t.missing = cat("no CUPTI for CUDA ", driver_major, " or older was found; pip install '",
                        driver_major < 13 ? "nvidia-cuda-cupti-cu12" : "nvidia-cuda-cupti", "<",
                        driver_major, ".", minor + 1, "'");  // none newer than the driver
        return;
    }
    uint32_t version = 0;
    t.GetVersion(&version);
    const bool known = (version >= kOldest && version <= kLastPlain) ||
                       (version >= kFirstLong && version <= kNewest);
    if (!known)
        t.missing = cat("the records of CUPTI's version ", version, " are not known; need ",
                        kOldest, " to ", kLastPlain, " or ", kFirstLong, " to ", kNewest);
}

void detach(Tracer& t) {
    if (!t.subscriber) return;
    t.ActivityDisable(kConcurrentKernel);
    t.ActivityFlushAll(kForced);
    t.Unsubscribe(t.subscriber);
    t.subscriber = nullptr;
}

bool attach(Tracer& t) {
    if (t.subscriber) return true;
    if (!t.loaded) load(t);
    t.problem = t.missing;
    if (!t.problem.empty()) return false;
    const auto ok = [&](int result, const char* call) {
        if (result == 0) return true;
        const char* text = nullptr;
        t.GetResultString(result, &text);
        t.problem = cat("CUPTI: ", call, " met ", text ? text : "an error", " (", result, ")");
        return false;
    };
    // Nothing is called back, but there is one subscriber at a time: whoever else traces this
    // process is left alone.
    if (!ok(t.Subscribe(
                &t.subscriber, [](void*, int, uint32_t, const void*) {}, nullptr),
            "cuptiSubscribe")) {
        t.subscriber = nullptr;
        return false;
    }
    if (ok(t.ActivityRegisterCallbacks(request, complete), "cuptiActivityRegisterCallbacks") &&
        ok(t.ActivityEnable(kConcurrentKernel), "cuptiActivityEnable"))
        return true;
    t.Unsubscribe(t.subscriber);
    t.subscriber = nullptr;
    return false;
}

}  // namespace

TracingHold::TracingHold() : born_(forks()) {
    std::lock_guard guard(tracer().lock);
    tracer().holds++;
}

TracingHold::~TracingHold() {
    if (born_ != forks()) return;  // what is attached is the parent's
    std::lock_guard guard(tracer().lock);
    if (--tracer().holds == 0) detach(tracer());
}

bool trace_kernels(const std::function<size_t()>& work, std::vector<KernelRecord>& records) {
    Tracer& t = tracer();
    std::lock_guard guard(t.lock);
    if (!attach(t)) return false;
    {
        std::lock_guard inner(t.records_lock);
        t.GetTimestamp(&t.known);
        t.zero = steady_seconds();
        t.records.clear();
    }
    const size_t kernels = work();
    for (uint32_t flag : {0U, kForced}) {  // without force: buffers whose records are whole
        t.ActivityFlushAll(flag);
        std::lock_guard inner(t.records_lock);
        if (flag != kForced && t.records.size() < kernels) continue;
        records.swap(t.records);
        break;
    }
    return true;
}

uint32_t traced_id(CUgraphExec graph) {
    uint32_t id = 0;
    return tracer().GetGraphExecId(graph, &id) == 0 ? id : 0;
}

void give_up_tracing(std::string why) {
    Tracer& t = tracer();
    std::lock_guard guard(t.lock);
    detach(t);
    t.problem = t.missing = std::move(why);
}

std::string tracing_file() {
    for (const std::string& path : places(driver_version() / 1000))
        if (path.find('/') != std::string::npos) return path;
    return "";
}

std::string tracing_problem() {
    std::lock_guard guard(tracer().lock);
    return tracer().problem;
}

}  // namespace aicf::cuda
