#include "kernels/cuda/nvrtc.h"

#include <dirent.h>
#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <string_view>

#include "core/base/aside.h"
#include "core/base/error.h"
#include "core/base/fork.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/sources.h"

namespace aicf::cuda {

namespace {

using Program = void*;

/// X(name, arguments): the functions of nvrtc.h that are used; all return 0 for success.
#define AICF_NVRTC(X)                                                                            \
    X(Version, (int* major, int* minor))                                                         \
    X(CreateProgram, (Program * program, const char* source, const char* name, int header_count, \
                      const char* const* headers, const char* const* header_names))              \
    X(CompileProgram, (Program program, int option_count, const char* const* options))           \
    X(GetProgramLogSize, (Program program, size_t* size))                                        \
    X(GetProgramLog, (Program program, char* log))                                               \
    X(GetCUBINSize, (Program program, size_t* size))                                             \
    X(GetCUBIN, (Program program, char* cubin))                                                  \
    X(DestroyProgram, (Program * program))

struct Nvrtc {
#define AICF_MEMBER(name, arguments) int(*name) arguments = nullptr;
    AICF_NVRTC(AICF_MEMBER)
#undef AICF_MEMBER
    NvrtcInfo info;
};

constexpr int kInvalidOption = 5;  // NVRTC_ERROR_INVALID_OPTION
/// The options for every kernel. From 12.4 on what no kernel uses (textures, the runtime's types)
/// need not be declared in each program.
std::vector<const char*> options_of(const NvrtcInfo& info) {
    std::vector<const char*> options = {"--std=c++20", "--fmad=false"};
    if (info.major > 12 || (info.major == 12 && info.minor >= 4)) options.push_back("--minimal");
    return options;
}

/// NVRTC opens its builtins by bare name at the first compile; loaded before, they are found.
void preload_builtins(const std::string& library, const char* builtins) {
    const std::string folder = library.substr(0, library.rfind('/'));
    if (DIR* dir = opendir(folder.c_str())) {
        while (const dirent* entry = readdir(dir)) {
            const std::string name = entry->d_name;
            if (name.starts_with(builtins))
                dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_GLOBAL);
        }
        closedir(dir);
    }
}

bool open_library(Nvrtc& nvrtc, const std::string& path, const char* builtins) {
    if (path.find('/') != std::string::npos) preload_builtins(path, builtins);
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    bool complete = true;
#define AICF_LOAD(name, arguments)                                                      \
    nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(dlsym(library, "nvrtc" #name)); \
    complete &= nvrtc.name != nullptr;
    AICF_NVRTC(AICF_LOAD)
#undef AICF_LOAD
    if (!complete || nvrtc.Version(&nvrtc.info.major, &nvrtc.info.minor) != 0) return false;
    nvrtc.info.path = path;
    return true;
}

constexpr const char* kBuiltins = "libnvrtc-builtins.so";

void find_library(Nvrtc& nvrtc, int driver_major) {
    for (const std::string& path :
         library_files("libnvrtc.so.", {"cu13/lib", "cuda_nvrtc/lib"}, driver_major))
        if (open_library(nvrtc, path, kBuiltins)) return;
    const int wanted = driver_major ? std::min(driver_major, 13) : 13;
    nvrtc.info.problem =
        cat("no NVRTC was found in the process, beside this package, under CUDA_HOME or by its "
            "soname; need one for CUDA ",
            wanted, " or older: pip install aicf[cuda", wanted, "]");
}

Nvrtc& nvrtc_once() {
    static Nvrtc& nvrtc = *new Nvrtc;  // for good
    static std::mutex lock;
    std::lock_guard guard(lock);
    if (nvrtc.info.path.empty()) {
        nvrtc.info = {};
        find_library(nvrtc, driver_version() / 1000);
    }
    return nvrtc;
}

std::string compile_by(const Nvrtc& nvrtc, const std::string& text, const std::string& arch,
                       std::string* report) {
    Program program = nullptr;
    if (nvrtc.CreateProgram(&program, text.c_str(), "aicf.cu", 0, nullptr, nullptr) != 0)
        raise(ErrorKind::internal, "cuda: NVRTC could not make a program");
    const std::string target = "--gpu-architecture=" + arch;
    std::vector<const char*> options = options_of(nvrtc.info);
    options.push_back(target.c_str());
    if (report) options.push_back("--ptxas-options=-v");
    const int failed =
        nvrtc.CompileProgram(program, static_cast<int>(options.size()), options.data());
    std::string cubin;
    size_t size = 0;
    if (failed || report) {
        nvrtc.GetProgramLogSize(program, &size);
        std::string log(size, '\0');
        if (size) nvrtc.GetProgramLog(program, log.data());
        if (report) *report = log.c_str();
        if (failed) nvrtc.DestroyProgram(&program);
        if (failed == kInvalidOption)
            raise(ErrorKind::device_unavailable, "cuda: NVRTC ", nvrtc.info.major, ".",
                  nvrtc.info.minor, " at ", nvrtc.info.path, " does not know ", arch,
                  "; need a newer NVRTC");
        if (failed)
            raise(ErrorKind::internal, "cuda: NVRTC ", nvrtc.info.major, ".", nvrtc.info.minor,
                  " refused a kernel for ", arch, ": ", log.c_str());
    }
    nvrtc.GetCUBINSize(program, &size);
    cubin.resize(size);
    nvrtc.GetCUBIN(program, cubin.data());
    nvrtc.DestroyProgram(&program);
    return cubin;
}

bool works(const Nvrtc& nvrtc) {
    try {
        compile_by(nvrtc, "extern \"C\" __global__ void nothing() {}\n", "sm_90", nullptr);
        return true;
    } catch (const Error&) {
        return false;
    }
}

/// The same library under the other name that it comes with; null where it did not.
Nvrtc* second_nvrtc() {
    static Nvrtc& nvrtc = *new Nvrtc;  // for good
    static ForkMutex lock;
    static bool asked = false;
    const Nvrtc& first = nvrtc_once();
    const std::lock_guard guard(lock);
    if (!asked) {
        std::string path = first.info.path;
        const std::string_view name = "/libnvrtc.so.";
        const size_t at = path.rfind(name);
        asked = true;
        if (at != std::string::npos &&
            access(path.replace(at, name.size(), "/libnvrtc.alt.so.").c_str(), R_OK) == 0 &&
            open_library(nvrtc, path, "libnvrtc-builtins.alt.so") &&
            (nvrtc.info.major != first.info.major || nvrtc.info.minor != first.info.minor ||
             !works(nvrtc)))
            nvrtc.info.path.clear();
    }
    return nvrtc.info.path.empty() ? nullptr : &nvrtc;
}

std::atomic<int> at_work[2];  // programs that each of the two compiles

/// The one of the two that has less to do, for a program: the front end of a library, which is a
/// third of a small program's time, takes one at a time.
class Turn {
  public:
    Turn() : which_(at_work[0]++ > at_work[1] ? 1 : 0) {
        Nvrtc* const second = which_ ? second_nvrtc() : nullptr;
        if (second) at_work[0]--, at_work[1]++;
        which_ = second ? 1 : 0;
        nvrtc_ = second ? second : &nvrtc_once();
    }
    ~Turn() { at_work[which_]--; }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    const Nvrtc& nvrtc() const { return *nvrtc_; }

  private:
    int which_;
    const Nvrtc* nvrtc_;
};

}  // namespace

const NvrtcInfo& nvrtc_info() { return nvrtc_once().info; }

std::string compile_key() {
    const NvrtcInfo& info = nvrtc_info();
    std::string key = cat("nvrtc ", info.major, ".", info.minor);
    struct stat status = {};  // tells one patch release from another
    if (stat(info.path.c_str(), &status) == 0) key += cat(" of ", status.st_size, " bytes");
    for (const char* option : options_of(info)) key += cat(" ", option);
    return key;
}

namespace {

/// NVRTC's front end takes SIGINT and SIGTERM for itself and ends the process at one: what was
/// there before is put back as soon as that is seen.
void keep_handlers() {
    static std::mutex lock;
    static struct sigaction before[2];
    static bool known[2];
    const std::lock_guard guard(lock);
    for (int i = 0; i < 2; i++) {
        const int number = i ? SIGTERM : SIGINT;
        struct sigaction now = {};
        Dl_info from = {};
        if (sigaction(number, nullptr, &now) != 0) continue;
        const bool theirs =
            dladdr(reinterpret_cast<void*>(now.sa_handler), &from) != 0 && from.dli_fname &&
            std::string_view(from.dli_fname).find("libnvrtc") != std::string_view::npos;
        if (!theirs) {
            before[i] = now;
            known[i] = true;
        } else if (known[i]) {
            sigaction(number, &before[i], nullptr);
        }
    }
}

}  // namespace

void run_compiler(std::function<void(const std::atomic<bool>& given_up)> work) {
    struct Keeping {
        ~Keeping() { keep_handlers(); }
    };
    keep_handlers();
    run_aside(
        [work = std::move(work)](const std::atomic<bool>& given_up) {
            const Keeping keeping;
            work(given_up);
        },
        keep_handlers);
}

std::string compile_cuda(const std::string& source, const std::string& arch, std::string* report) {
    if (nvrtc_info().path.empty())
        raise(ErrorKind::device_unavailable, "cuda: ", nvrtc_info().problem);
    const std::string text = with_sources(source);
    const Turn turn;
    return compile_by(turn.nvrtc(), text, arch, report);
}

void prepare_compiler() { second_nvrtc(); }

}  // namespace aicf::cuda
