// A CUPTI for tests, beside the fake driver, which tells it what graphs launch. FAKE_CUPTI names
// what is wrong with it: "version", "subscriber" (another tool has it), "enable", "drop" (of each
// launch the last kernel), "zero" (no times), "names" (another's). "shuffle": the ids of nodes do
// not rise with the nodes. It tells of a foreign graph's launch behind each and of a kernel outside
// graphs. At exit a line says what it was asked for.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Record {  // as CUDA 12.4 to 13.5 have it, up to what is read
    int32_t kind = 10;
    uint8_t plain[12] = {};
    uint64_t begin, end;
    uint8_t shape[60] = {};
    uint32_t correlation;
    int64_t grid = 0;
    const char* name;
    uint8_t more[32] = {};
    uint64_t node;
    uint32_t memory = 0;
    uint32_t graph;
    uint8_t rest[56] = {};
};
static_assert(offsetof(Record, begin) == 16 && offsetof(Record, correlation) == 92 &&
              offsetof(Record, name) == 104 && offsetof(Record, node) == 144 &&
              offsetof(Record, graph) == 156 && sizeof(Record) == 216);

std::mutex lock;
bool subscribed = false, enabled = false;
int subscriptions = 0, enables = 0, records_told = 0;
void (*request)(uint8_t**, size_t*, size_t*) = nullptr;
void (*complete)(void*, uint32_t, uint8_t*, size_t, size_t) = nullptr;
auto& held = *new std::vector<Record>;
uint32_t launches = 0;

bool is(const char* what) {
    const char* mode = std::getenv("FAKE_CUPTI");
    return mode && std::strcmp(mode, what) == 0;
}

struct Report {
    ~Report() {
        std::fprintf(stderr, "fake CUPTI: subscribed %d enabled %d of %d records %d\n", subscribed,
                     enabled, enables, records_told);
    }
} report;

}  // namespace

extern "C" {

/// What the fake driver calls for each launch of a graph: the symbols of its kernels, in the order
/// of the nodes, and from when to when each ran.
void fake_cupti_launched(uint32_t graph, size_t count, const char* const* symbols,
                         const uint64_t* begins, const uint64_t* ends) {
    std::lock_guard guard(lock);
    if (!enabled) return;
    const uint64_t nodes = is("shuffle") ? 0 : uint64_t{graph} << 32;
    launches++;
    for (size_t i = 0; i + is("drop") < count; i++) {
        Record record;
        record.begin = is("zero") ? 0 : begins[i];
        record.end = is("zero") ? 0 : ends[i];
        record.correlation = launches;
        record.name = is("names") ? "somebody_elses" : symbols[i];
        record.node = nodes + (is("shuffle") ? count - i : i + 1);
        record.graph = graph;
        held.insert(held.begin(), record);  // in no order
    }
    Record foreign;
    foreign.begin = begins[0];
    foreign.end = ends[0];
    foreign.correlation = ++launches;
    // Where ours are dropped, of another kernel: a graph of one would be taken for it.
    foreign.name = is("drop") ? "somebody_elses" : symbols[0];
    foreign.node = 1;
    foreign.graph = 4000000;
    held.push_back(foreign);
    foreign.correlation = ++launches;
    foreign.node = foreign.graph = 0;  // of no graph
    held.push_back(foreign);
}

int cuptiGetVersion(uint32_t* version) {
    *version = is("version") ? 140000 : 130001;
    return 0;
}
int cuptiGetResultString(int result, const char** text) {
    *text = result == 39 ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED" : "CUPTI_ERROR";
    return 0;
}
int cuptiSubscribe(void** subscriber, void*, void*) {
    std::lock_guard guard(lock);
    if (is("subscriber") || subscribed) return 39;
    using Watch =
        void (*)(void (*)(uint32_t, size_t, const char* const*, const uint64_t*, const uint64_t*));
    const auto watch = reinterpret_cast<Watch>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_cuda_watch"));
    watch(fake_cupti_launched);
    subscribed = true;
    subscriptions++;
    *subscriber = &subscribed;
    return 0;
}
int cuptiUnsubscribe(void*) {
    std::lock_guard guard(lock);
    subscribed = false;
    return 0;
}
int cuptiActivityRegisterCallbacks(void* on_request, void* on_complete) {
    request = reinterpret_cast<decltype(request)>(on_request);
    complete = reinterpret_cast<decltype(complete)>(on_complete);
    return 0;
}
int cuptiActivityEnable(int) {
    std::lock_guard guard(lock);
    if (is("enable")) return 35;
    enabled = true;
    enables++;
    return 0;
}
int cuptiActivityDisable(int) {
    std::lock_guard guard(lock);
    enabled = false;
    return 0;
}
int cuptiActivityFlushAll(uint32_t) {
    std::vector<Record> now;
    {
        std::lock_guard guard(lock);
        now.swap(held);
        records_told += static_cast<int>(now.size());
    }
    for (size_t at = 0; at < now.size();) {
        uint8_t* buffer = nullptr;
        size_t size = 0, most = 0;
        request(&buffer, &size, &most);
        size_t filled = 0;
        // Small buffers, so that a launch lies in several.
        for (; at < now.size() && filled + sizeof(Record) <= size && filled < 7 * sizeof(Record);
             filled += sizeof(Record))
            std::memcpy(buffer + filled, &now[at++], sizeof(Record));
        complete(nullptr, 0, buffer, size, filled);
    }
    return 0;
}
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, const uint8_t** record) {
    const uint8_t* next = *record ? *record + sizeof(Record) : buffer;
    if (next + sizeof(Record) > buffer + valid) return 12;
    *record = next;
    return 0;
}
int cuptiGetTimestamp(uint64_t* nanoseconds) {
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);
    *nanoseconds =
        static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
    return 0;
}
int cuptiGetGraphExecId(const uint32_t* graph, uint32_t* id) {
    using Id = uint32_t (*)(const void*);
    *id = reinterpret_cast<Id>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), "fake_cuda_exec_id"))(graph);
    return 0;
}

}  // extern "C"
