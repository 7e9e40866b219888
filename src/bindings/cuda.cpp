// What Python sees of the CUDA backend beside its steps: what was found, the kernel cache.
#ifdef AICF_CUDA
#include "bindings/bindings.h"
#include "core/base/aside.h"
#include "core/base/disk_cache.h"
#include "core/base/float_mode.h"
#include "core/compile/compile.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/nvtx.h"

namespace aicf {

namespace {

CompileOptions options_of(const std::vector<std::string>& passes, const std::string& math) {
    CompileOptions options;
    options.passes = passes;
    options.math = math;
    return options;
}

}  // namespace

void bind_cuda(nb::module_& m) {
    register_cuda_backend();
    std::vector<std::string> folders;
    for (nb::handle entry : nb::module_::import_("sys").attr("path"))
        if (nb::isinstance<nb::str>(entry))
            if (std::string folder = nb::cast<std::string>(entry); folder.starts_with("/"))
                folders.push_back(std::move(folder));
    set_cuda_search_path(std::move(folders));
    nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
        nb::gil_scoped_release release;
        finish_asides();
    }));
    m.def(
        "cuda_info",
        [] {
            CudaInfo info;
            {
                GilRelease release;
                info = cuda_info();
            }
            nb::dict result;
            result["problem"] = info.problem;
            result["driver"] = info.driver;
            result["nvrtc"] = info.nvrtc;
            result["cupti"] = info.cupti;
            nb::list devices;
            for (const GpuInfo& gpu : info.devices) {
                nb::dict entry;
                entry["device"] = gpu.device;
                entry["name"] = gpu.name;
                entry["arch"] = gpu.arch;
                entry["multiprocessors"] = gpu.multiprocessors;
                entry["total_bytes"] = gpu.total_bytes;
                entry["free_bytes"] = gpu.free_bytes;
                entry["used_bytes"] = gpu.used_bytes;
                entry["reserved_bytes"] = gpu.reserved_bytes;
                entry["peak_bytes"] = gpu.peak_bytes;
                devices.append(entry);
            }
            result["devices"] = devices;
            result["cache"] = info.cache;
            result["cache_entries"] = info.cache_entries;
            result["cache_bytes"] = info.cache_bytes;
            result["compiled"] = info.compiled;
            return result;
        },
        "What was found of the NVIDIA driver, NVRTC, devices and the kernel cache on disk.");
    m.def("cuda_problem", &cuda_problem, nb::call_guard<GilRelease>(),
          "Why no CUDA device can be used here; empty where one can.");
    m.def("clear_cuda_cache", &clear_cuda_cache,
          "Removes every compiled kernel on disk; returns how many.");
    m.def(
        "load_cached",
        [](const std::string& key) -> nb::object {
            std::optional<std::string> found;
            {
                const GilRelease release;
                found = load_cached(key);
            }
            if (!found) return nb::none();
            return nb::bytes(found->data(), found->size());
        },
        nb::arg("key"), nb::sig("def load_cached(key: str) -> bytes | None"),
        "What the folder of compiled kernels holds under a key.");
    m.def("store_cached", &store_cached, nb::arg("key"), nb::arg("payload"),
          nb::call_guard<GilRelease>(), "Keeps it there, if it can be.");
    m.def(
        "hold_cuda_tracing",
        [] {
            return nb::capsule(
                new std::shared_ptr<void>(hold_cuda_tracing()),
                [](void* p) noexcept { delete static_cast<std::shared_ptr<void>*>(p); });
        },
        nb::sig("def hold_cuda_tracing() -> object"),
        "While it lives, what profiles attach to the process stays attached.");
    nb::class_<cuda::Nvtx>(m, "Nvtx", "The ranges of the library of NVTX at a path.")
        .def(nb::init<const std::string&>(), nb::arg("path"))
        .def("push", &cuda::Nvtx::push, nb::arg("name"), "Begins a range of this thread.")
        .def("pop", &cuda::Nvtx::pop, "Ends the range begun last.");
    m.def(
        "cuda_thresholds",
        [] {
            nb::list all;
            for (const CudaThreshold& one : cuda_thresholds())
                all.append(nb::make_tuple("cuda", one.size, one.quantity, one.value));
            return all;
        },
        nb::sig("def cuda_thresholds() -> list[tuple[str, int, str, int]]"),
        "Sizes at which CUDA kernels go another way, as `cpu_thresholds` says.");
    m.def(
        "cuda_candidates",
        [](const Graph& graph, const std::vector<std::string>& names, int processors,
           const std::string& arch, const std::string& math) {
            const auto target = cuda_target(processors, arch);
            std::map<std::string, std::vector<std::string>> found;
            const auto note = [&](const LoweredOp& op) {
                std::vector<std::string> list = target->candidates(op);
                if (list.size() > 1) found[signature(op)] = std::move(list);
            };
            for (const LoweredOp& op : rewrite(graph, *target, options_of(names, math)).ops) {
                note(op);
                for (const LoweredOp& member : op.members) note(member);
            }
            return found;
        },
        nb::arg("graph"), nb::arg("passes"), nb::arg("processors") = 132,
        nb::arg("arch") = "sm_90a", nb::arg("math") = "fp32", nb::call_guard<FloatMode>(),
        "The kernels to choose from by op signature, the one chosen by itself first.");
    m.def(
        "cuda_plan",
        [](const Graph& graph, const std::vector<std::string>& names, int processors,
           const std::string& arch, const std::string& math) {
            CompileOptions options = options_of(names, math);
            options.code = false;
            return to_json(compile(graph, *cuda_target(processors, arch), options));
        },
        nb::arg("graph"), nb::arg("passes"), nb::arg("processors") = 132,
        nb::arg("arch") = "sm_90a", nb::arg("math") = "fp32", nb::call_guard<FloatMode>(),
        "The plan of a graph on a GPU, as JSON; needs none.");
    m.def(
        "cuda_programs",
        [](const Graph& graph, const std::vector<std::string>& names, int processors,
           const std::string& arch, const std::string& math, const Candidates& candidates) {
            CompileOptions options = options_of(names, math);
            options.candidates = candidates;
            options.code = false;
            return cuda_programs(compile(graph, *cuda_target(processors, arch), options).kernels());
        },
        nb::arg("graph"), nb::arg("passes"), nb::arg("processors") = 132,
        nb::arg("arch") = "sm_90a", nb::arg("math") = "fp32", nb::arg("candidates") = Candidates(),
        nb::call_guard<FloatMode>(),
        "The CUDA C++ programs of a graph's kernels, one each; needs no GPU.");
    m.def(
        "cuda_cubins",
        [](const std::vector<std::string>& programs, const std::string& arch) {
            std::vector<std::string> cubins;
            {
                const GilRelease release;
                const Signals signals;
                cubins = cuda_cubins(programs, arch);
            }
            nb::list result;
            for (const std::string& cubin : cubins)
                result.append(nb::bytes(cubin.data(), cubin.size()));
            return result;
        },
        nb::sig("def cuda_cubins(programs: Sequence[str], arch: str) -> list[bytes]"),
        nb::arg("programs"), nb::arg("arch"),
        "Compiles programs with NVRTC, through the cache on disk; needs no GPU.");
    m.def("cuda_log", &cuda_log, nb::arg("program"), nb::arg("arch"),
          nb::call_guard<GilRelease, Signals>(),
          "What NVRTC and its assembler say of a program: registers, spills, what is serialized.");
    m.def("cuda_source", &cuda_source, nb::arg("program"),
          "A program as NVRTC gets it: with what it uses of the sources that it includes.");
}

}  // namespace aicf
#endif
