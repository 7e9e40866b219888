// An allocator for tests, put in front of the process's own by LD_PRELOAD: while armed it counts
// what aicf asks for (calls that return into the watched libraries, on any thread) and lets the
// k-th fail, or all from the k-th on. A thread that would be started counts as well.
// Armed for Python it counts what the interpreter's own allocators are asked for instead.
// FAILING_MEMORY_TRACE=1 prints the stack of what fails, and of a crash.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

struct Range {
    uintptr_t begin, end;
};
constexpr int kMaxRanges = 32;
Range ranges[kMaxRanges];
int range_count = 0;

enum Armed { kNot, kCore, kPython };
std::atomic<int> armed{kNot};
std::atomic<long> calls{0}, failures{0};
long first = 0;
bool onward = false, trace = false;

void print_stack() {
    void* stack[64];
    backtrace_symbols_fd(stack, backtrace(stack, 64), 2);
}

void print_crash(int fatal) {
    armed = kNot;
    const char line[] = "-- crash\n";
    if (write(2, line, sizeof line - 1) > 0) print_stack();
    std::signal(fatal, SIG_DFL);
    std::raise(fatal);
}

/// Counts a call; true when it is one that shall fail.
bool counted() {
    const long call = ++calls;
    if (first == 0 || (onward ? call < first : call != first)) return false;
    if (failures++ == 0 && trace) {
        const int before = armed.exchange(kNot);
        print_stack();
        armed = before;
    }
    return true;
}

/// The same for a call that will return to `caller`.
bool fails(const void* caller) {
    if (armed.load(std::memory_order_acquire) != kCore) return false;
    const auto at = reinterpret_cast<uintptr_t>(caller);
    for (int i = 0; i < range_count; i++)
        if (ranges[i].begin <= at && at < ranges[i].end) return counted();
    return false;
}

/// CPython's PyMemAllocatorEx, and the allocators that stood there before.
struct PythonAllocator {
    void* context;
    void* (*malloc)(void*, size_t);
    void* (*calloc)(void*, size_t, size_t);
    void* (*realloc)(void*, void*, size_t);
    void (*free)(void*, void*);
};
constexpr int kDomains = 3;  // raw, mem, object
PythonAllocator python[kDomains];

bool python_fails() { return armed.load(std::memory_order_acquire) == kPython && counted(); }
const PythonAllocator& python_of(void* context) { return *static_cast<PythonAllocator*>(context); }

void* python_malloc(void* context, size_t size) {
    const PythonAllocator& own = python_of(context);
    return python_fails() ? nullptr : own.malloc(own.context, size);
}
void* python_calloc(void* context, size_t count, size_t size) {
    const PythonAllocator& own = python_of(context);
    return python_fails() ? nullptr : own.calloc(own.context, count, size);
}
void* python_realloc(void* context, void* old, size_t size) {
    const PythonAllocator& own = python_of(context);
    return python_fails() ? nullptr : own.realloc(own.context, old, size);
}
void python_free(void* context, void* memory) {
    const PythonAllocator& own = python_of(context);
    own.free(own.context, memory);
}

int add_ranges(dl_phdr_info* info, size_t, void* wanted) {
    const char* name = static_cast<const char*>(wanted);
    if (!info->dlpi_name || !std::strstr(info->dlpi_name, name)) return 0;
    for (int i = 0; i < info->dlpi_phnum && range_count < kMaxRanges; i++) {
        const ElfW(Phdr) & part = info->dlpi_phdr[i];
        if (part.p_type != PT_LOAD || !(part.p_flags & PF_X)) continue;
        const uintptr_t begin = info->dlpi_addr + part.p_vaddr;
        ranges[range_count++] = {begin, begin + part.p_memsz};
    }
    return 0;
}

}  // namespace

#define CALLER __builtin_return_address(0)

extern "C" {

/// Watches the loaded libraries whose path contains `name`; returns how many pieces of code.
int failing_memory_watch(const char* name) {
    const int before = range_count;
    dl_iterate_phdr(add_ranges, const_cast<char*>(name));
    trace = std::getenv("FAILING_MEMORY_TRACE") != nullptr;
    if (trace)
        for (int fatal : {SIGSEGV, SIGBUS, SIGABRT}) std::signal(fatal, print_crash);
    return range_count - before;
}
/// Stands in front of the interpreter's allocators from now on; false where there is none.
int failing_memory_watch_python() {
    using Access = void (*)(int, PythonAllocator*);
    const auto get = reinterpret_cast<Access>(dlsym(RTLD_DEFAULT, "PyMem_GetAllocator"));
    const auto set = reinterpret_cast<Access>(dlsym(RTLD_DEFAULT, "PyMem_SetAllocator"));
    if (!get || !set) return 0;
    for (int domain = 0; domain < kDomains; domain++) {
        get(domain, &python[domain]);
        PythonAllocator ours = {&python[domain], python_malloc, python_calloc, python_realloc,
                                python_free};
        set(domain, &ours);
    }
    return 1;
}
/// Call k, counted from 1, fails, and with `rest` all that follow; with k = 0 none.
void failing_memory_arm(long k, int rest, int of_python) {
    first = k;
    onward = rest != 0;
    calls = failures = 0;
    armed = of_python ? kPython : kCore;
}
/// Returns how many calls were counted.
long failing_memory_disarm() {
    armed = kNot;
    return calls;
}
long failing_memory_failures() { return failures; }

void* malloc(size_t size) {
    if (!fails(CALLER)) return __libc_malloc(size);
    errno = ENOMEM;
    return nullptr;
}
void* calloc(size_t count, size_t size) {
    if (!fails(CALLER)) return __libc_calloc(count, size);
    errno = ENOMEM;
    return nullptr;
}
void* realloc(void* old, size_t size) {
    if (!fails(CALLER)) return __libc_realloc(old, size);
    errno = ENOMEM;
    return nullptr;
}
void* aligned_alloc(size_t align, size_t size) {
    if (!fails(CALLER)) return __libc_memalign(align, size);
    errno = ENOMEM;
    return nullptr;
}
void* memalign(size_t align, size_t size) {
    if (!fails(CALLER)) return __libc_memalign(align, size);
    errno = ENOMEM;
    return nullptr;
}
int posix_memalign(void** memory, size_t align, size_t size) {
    if (fails(CALLER)) return ENOMEM;
    *memory = __libc_memalign(align, size);
    return *memory ? 0 : ENOMEM;
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*entry)(void*),
                   void* argument) {
    using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
    return fails(CALLER) ? EAGAIN : real(thread, attributes, entry, argument);
}

}  // extern "C"

// The C++ forms stand here too: from inside libstdc++ malloc would return there, not to us.
namespace {

void* take(size_t size, size_t align, const void* caller) {
    if (fails(caller)) return nullptr;
    return align ? __libc_memalign(align, size) : __libc_malloc(size ? size : 1);
}
void* need(void* memory) {
    if (!memory) throw std::bad_alloc();
    return memory;
}

}  // namespace

void* operator new(size_t n) { return need(take(n, 0, CALLER)); }
void* operator new[](size_t n) { return need(take(n, 0, CALLER)); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return take(n, 0, CALLER); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return take(n, 0, CALLER); }
void* operator new(size_t n, std::align_val_t a) { return need(take(n, size_t(a), CALLER)); }
void* operator new[](size_t n, std::align_val_t a) { return need(take(n, size_t(a), CALLER)); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return take(n, size_t(a), CALLER);
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
    return take(n, size_t(a), CALLER);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { std::free(p); }
