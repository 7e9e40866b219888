// Kernels of custom ops: sources that the system's compiler makes a library of, and callbacks.
#include "core/graph/custom.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "core/base/aside.h"
#include "core/base/disk_cache.h"
#include "core/base/fork.h"
#include "core/graph/sources.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/families.h"

extern char** environ;

namespace aicf::cpu {

namespace {

using Run = void (*)(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread);

// ---- text --------------------------------------------------------------------------------------

/// A source with what it includes of ours in place, each once.
void add_source(const std::string& name, std::set<std::string>& there, std::string& text) {
    if (!there.insert(name).second) return;
    for (const SourceFile& file : abi_sources()) {
        if (file.name != name) continue;
        std::istringstream lines(file.text);
        for (std::string line; std::getline(lines, line);) {
            constexpr std::string_view include = "#include \"";
            if (line.starts_with(include))
                add_source(line.substr(include.size(), line.rfind('"') - include.size()), there,
                           text);
            else if (line != "#pragma once")
                text += line + "\n";
        }
        return;
    }
    raise(ErrorKind::internal, "cpu: ", name, " is not embedded");
}

/// The whole of a library: the author's `run`, and what calls it for units of an argument block.
std::string program_text(const LoweredOp& op, const CustomOp& custom) {
    std::string text, fill;
    std::set<std::string> there;
    add_source("core/abi/custom.h", there, text);
    text += custom_text(op, custom, false);
    const auto tensor = [&](size_t at, const std::string& name) {
        fill += cat("    fill(args.", name, ", block.operand(", at, "));\n");
    };
    for (size_t i = 0; i < op.inputs.size(); i++) tensor(i, custom.inputs[i]);
    for (size_t i = 0; i < op.outputs.size(); i++) tensor(op.inputs.size() + i, custom.outputs[i]);
    for (const CustomAttr& attr : custom_attrs(op))
        fill += cat("    args.", attr.name, " = block.scalar(", attr.scalar, ").",
                    std::holds_alternative<double>(attr.value) ? "f" : "i", ";\n");
    return text + R"(namespace {
template <class T, int Rank>
void fill(aicf::Tensor<T, Rank>& tensor, const aicf::Operand& operand) {
    tensor.data = static_cast<T*>(operand.ptr);
    tensor.size = 1;
    for (int d = 0; d < Rank; d++) {
        tensor.shape[d] = operand.shape()[d];
        tensor.strides[d] = operand.strides()[d];
        tensor.size *= tensor.shape[d];
    }
}
}  // namespace
extern "C" __attribute__((visibility("default"))) void aicf_run(
    const aicf::ArgBlock& block, int64_t begin, int64_t end, int, int) {
    Args args;
)" + fill + R"(    for (int64_t unit = begin; unit < end; unit++) run(args, unit);
}
)";
}

// ---- the compiler ------------------------------------------------------------------------------

/// The words of a command, and what tells one compiler from another.
struct Compiler {
    std::vector<std::string> words;
    std::string identity;
};

/// The file that a command's first word means; empty where there is none.
std::string program_of(const std::string& word) {
    const auto runs = [](const std::string& path) {
        struct stat status = {};
        return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
               access(path.c_str(), X_OK) == 0;
    };
    if (word.find('/') != std::string::npos) return runs(word) ? word : "";
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path ? path : "/usr/bin:/bin");
    for (std::string folder; std::getline(folders, folder, ':');)
        if (runs(cat(folder, "/", word))) return cat(folder, "/", word);
    return "";
}

Compiler find_compiler(const std::string& name) {
    const char* const wanted = std::getenv("CXX");
    std::vector<std::string> commands = {"c++", "g++", "clang++"};
    if (wanted && *wanted) commands = {wanted};
    for (const std::string& command : commands) {
        Compiler compiler;
        std::istringstream words(command);
        compiler.words.assign(std::istream_iterator<std::string>(words), {});
        const std::string file = compiler.words.empty() ? "" : program_of(compiler.words[0]);
        if (file.empty()) continue;
        char* const whole = realpath(file.c_str(), nullptr);
        struct stat status = {};
        stat(file.c_str(), &status);
        compiler.identity = cat(command, " ", whole ? whole : file.c_str(), " of ", status.st_size,
                                " bytes at ", status.st_mtime);
        std::free(whole);
        compiler.words[0] = file;
        return compiler;
    }
    raise(ErrorKind::device_unavailable, "custom_op ", name, ": no C++ compiler, which its source ",
          "for the cpu needs: ",
          wanted && *wanted ? cat("CXX is \"", wanted, "\", which cannot be run")
                            : "there is no c++, g++ or clang++ on PATH, and CXX is not set",
          "; install one (apt install g++), or set CXX to one that knows C++20");
}

/// Contraction and other liberties would make bits the compiler's.
std::vector<std::string> flags() {
    std::vector<std::string> flags = {"-std=c++20",
                                      "-O3",
                                      "-ffp-contract=off",
                                      "-fno-math-errno",
                                      "-fno-trapping-math",
                                      "-fvisibility=hidden",
                                      "-fPIC",
                                      "-shared",
                                      "-w"};
#if defined(__x86_64__)
    const std::string set = cpu_isa();
    flags.push_back(cat("-march=x86-64-v", set == "avx512" ? "4" : set == "avx2" ? "3" : "2"));
#endif
    return flags;
}

/// A folder of ours alone that goes with its files.
class Scratch {
  public:
    Scratch() {
        const char* const wanted = std::getenv("TMPDIR");
        path_ = cat(wanted && *wanted == '/' ? wanted : "/tmp", "/aicf-XXXXXX");
        if (!mkdtemp(path_.data()))
            raise(ErrorKind::device_unavailable, "custom_op: no folder can be made as ", path_,
                  ": ", std::strerror(errno), "; set TMPDIR to one that can be written");
    }
    ~Scratch() {
        for (const char* name : {"op.cpp", "op.so", "log"}) unlink(file(name).c_str());
        rmdir(path_.c_str());
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    std::string file(const char* name) const { return cat(path_, "/", name); }

  private:
    std::string path_;
};

std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path, std::ios::binary);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    file.close();
    if (!file)
        raise(ErrorKind::device_unavailable, "custom_op: ", path,
              " cannot be written; set TMPDIR to a folder with room");
}

/// The library that a compiler makes of a text.
std::string compile(const std::string& name, const std::string& text, const Compiler& compiler) {
    const Scratch scratch;
    write_file(scratch.file("op.cpp"), text);
    std::vector<std::string> words = compiler.words;
    for (const std::string& flag : flags()) words.push_back(flag);
    words.insert(words.end(), {"-o", scratch.file("op.so"), scratch.file("op.cpp")});
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, 1, scratch.file("log").c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t child = 0;
    const int problem = posix_spawn(&child, argv[0], &actions, nullptr, argv.data(), environ);
    posix_spawn_file_actions_destroy(&actions);
    if (problem)
        raise(ErrorKind::device_unavailable, "custom_op ", name, ": ", argv[0],
              " cannot be run: ", std::strerror(problem), "; set CXX to a C++ compiler");
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    std::string library = contents(scratch.file("op.so"));
    if (status != 0 || library.empty())
        raise(ErrorKind::graph, "custom_op ", name, ": the compiler ", compiler.words[0],
              " refuses its source for the cpu:\n", contents(scratch.file("log")));
    return library;
}

Run load(const std::string& name, const std::string& library) {
    const Scratch scratch;
    const std::string path = scratch.file("op.so");
    write_file(path, library);
    void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // for good
    const char* const said = handle ? nullptr : dlerror();
    if (!handle)
        raise(ErrorKind::device_unavailable, "custom_op ", name,
              ": its code does not load: ", said ? said : "out of memory",
              "; need what it calls to be in the source, and TMPDIR where code may be run");
    return reinterpret_cast<Run>(dlsym(handle, "aicf_run"));
}

/// What a custom op runs as, by all that its code depends on.
Run code_of(const LoweredOp& op, const CustomOp& custom) {
    struct Codes {
        ForkMutex lock;
        std::map<std::string, Run> known;  // by text
    };
    static auto* const codes = new Codes;  // for good
    const std::string text = program_text(op, custom);
    {
        const std::lock_guard guard(codes->lock);
        if (const auto at = codes->known.find(text); at != codes->known.end()) return at->second;
    }
    const Compiler compiler = find_compiler(custom.name);
    std::string key = cat("cpu ", compiler.identity);
    for (const std::string& flag : flags()) key += " " + flag;
    key += "\n" + text;
    const auto library = std::make_shared<std::optional<std::string>>(load_cached(key));
    if (!*library) {
        run_aside(
            [=, name = custom.name](const std::atomic<bool>&) {
                *library = compile(name, text, compiler);
                store_cached(key, **library);
                trim_cache();
            },
            [] {});
    }
    const Run run = load(custom.name, **library);
    const std::lock_guard guard(codes->lock);
    return codes->known.emplace(text, run).first->second;
}

// ---- calls of the host -------------------------------------------------------------------------

std::atomic<HostCall> host_call = nullptr;

void run_host(const ArgBlock& args, int64_t, int64_t, int, int) {
    struct Inside {
        Inside() { in_host_call()++; }
        ~Inside() { in_host_call()--; }
    } inside;
    host_call.load()(args);
}

int64_t one_unit(const ArgBlock&, int) { return 1; }

std::shared_ptr<BoundKernel> custom_kernel(const LoweredOp& op) {
    const CustomOp& custom = custom_op(op);
    if (custom.cpu.empty())
        raise(ErrorKind::unsupported, "custom_op ", custom.name,
              ": it has no source for the cpu; need cpu=, or device=\"cuda\"");
    auto kernel = std::make_shared<BoundKernel>();
    kernel->name = cat(custom.name, "_", dtype_abbrev(op.outputs[0].dtype));
    kernel->code = {"custom_op", 0, code_of(op, custom), [](const ArgBlock& args, int) {
                        const int64_t axes = args.scalar(kUnitAxesScalar).i;
                        int64_t units = 1;
                        for (int d = 0; d < axes; d++) units *= args.out(0).shape()[d];
                        return units;
                    }};
    kernel->from_here = true;
    return kernel;
}

std::shared_ptr<BoundKernel> host_kernel(const LoweredOp& op) {
    auto kernel = std::make_shared<BoundKernel>();
    kernel->name = cat("host_", op.attrs.text("op"));
    kernel->code = {"host_call", 0, run_host, one_unit};
    kernel->from_here = kernel->host = true;
    return kernel;
}

}  // namespace

void set_host_call(HostCall call) {
    host_call = call;
    make_custom = [](const LoweredOp& op) {
        return is_custom(*op.def) ? custom_kernel(op) : host_kernel(op);
    };
}

}  // namespace aicf::cpu
