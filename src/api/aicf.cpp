// The public runtime, over the core: translation only.
#include "aicf/aicf.h"

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>

#include "core/base/aside.h"
#include "core/base/fork.h"
#include "core/run/step.h"
#include "files.h"
#include "kernels/cpu/backend.h"
#ifdef AICF_CUDA
#include "kernels/cuda/backend.h"
#endif
#include "safetensors.h"

namespace aicf::runtime {

namespace {

const char* kind_text(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::graph:
            return "GraphError";
        case ErrorKind::shape:
            return "ShapeError";
        case ErrorKind::dtype:
            return "DTypeError";
        case ErrorKind::device_unavailable:
            return "DeviceUnavailable";
        case ErrorKind::device_lost:
            return "DeviceLost";
        case ErrorKind::out_of_memory:
            return "OutOfMemory";
        case ErrorKind::capture:
            return "CaptureError";
        case ErrorKind::stale_output:
            return "StaleOutput";
        case ErrorKind::bad_value:
            return "BadValue";
        case ErrorKind::format:
            return "FormatError";
        case ErrorKind::unsupported:
            return "Unsupported";
        case ErrorKind::internal:
            break;
    }
    return "InternalError";
}

/// Whatever is thrown leaves as the public error.
template <class Act>
auto guarded(const Act& act) -> decltype(act()) {
    try {
        return act();
    } catch (const aicf::Error& error) {
        throw Error(kind_text(error.kind()), error.what());
    } catch (const std::bad_alloc&) {
        throw Error("OutOfMemory", kNoMemory);
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        throw Error("InternalError", error.what());
    }
}

void register_backends() {
    static std::once_flag once;
    std::call_once(once, [] {
        count_forks();
        cpu::register_cpu_backend();
#ifdef AICF_CUDA
        register_cuda_backend();
#endif
        std::atexit([] { finish_asides(); });
    });
}

Device device_of(const std::string& text) {
    if (text == "cpu") return {};
    const std::string index = text.starts_with("cuda:") ? text.substr(5)
                              : text == "cuda"          ? "0"
                                                        : "";
    if (index.empty() || index.size() > 3 ||
        index.find_first_not_of("0123456789") != std::string::npos)
        raise(ErrorKind::graph, "device: \"", text, "\"; need cpu or cuda:<index>");
    return {Device::cuda, std::atoi(index.c_str())};
}

Tensor tensor_of(const std::string& name, const Type& type) {
    return {name, dtype_name(type.dtype), type.shape.vector(),
            static_cast<size_t>(byte_count(type))};
}

}  // namespace

Error::Error(std::string kind, const std::string& text)
    : std::runtime_error(text), kind_(std::move(kind)) {}
Error::~Error() = default;

struct Step::Impl {
    Impl(const Executable& file, const aicf::Step::Options& options) : step(file, options) {
        for (const Value* value : step.needed_inputs()) missing.insert(value->id);
    }
    aicf::Step step;
    std::mutex lock;            // of what follows
    std::set<ValueId> missing;  // inputs that an op reads and nobody has set

    std::vector<Tensor> leaves(Role role) const {
        std::vector<Tensor> all;
        for (const Value& value : step.plan().values)
            if (value.role == role) all.push_back(tensor_of(value.name, value.type));
        return all;
    }
    /// What a checkpoint holds.
    std::vector<const Value*> kept() const {
        std::vector<const Value*> all;
        for (const Role role : {Role::param, Role::state})
            for (const Value& value : step.plan().values)
                if (value.role == role) all.push_back(&value);
        return all;
    }
    std::vector<NamedType> kept_types() const {
        std::vector<NamedType> all;
        for (const Value* value : kept())
            all.push_back({value->name, value->type.dtype, value->type.shape});
        return all;
    }
    static TensorRef tensor_at(const void* elements, const Type& type) {
        TensorRef tensor;
        tensor.data = const_cast<void*>(elements);
        tensor.dtype = type.dtype;
        tensor.shape = type.shape;
        tensor.strides = contiguous_strides(tensor.shape);
        return tensor;
    }
};

Step::Impl& Step::impl() const {
    if (!impl_)
        throw Error("GraphError", "step: it was moved from; need the one that it was moved to");
    return *impl_;
}

Step::Step(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Step::Step(Step&& other) noexcept = default;
Step& Step::operator=(Step&& other) noexcept = default;
Step::~Step() = default;

Step Step::load(const std::string& path, const std::string& device) {
    return guarded([&] {
        register_backends();
        Source source(path);
        std::vector<char> bytes(source.size());
        source.read(bytes.data(), bytes.size());
        source.check_unchanged();
        const Executable file({bytes.data(), bytes.size()}, source.where());
        aicf::Step::Options options;
        options.device.kind = file.plan().device;
        if (!device.empty()) options.device = device_of(device);
        return Step(std::make_unique<Impl>(file, options));
    });
}

std::vector<Tensor> Step::inputs() const {
    return guarded([&] { return impl().leaves(Role::input); });
}
std::vector<Tensor> Step::params() const {
    return guarded([&] { return impl().leaves(Role::param); });
}
std::vector<Tensor> Step::states() const {
    return guarded([&] { return impl().leaves(Role::state); });
}

std::vector<Tensor> Step::outputs() const {
    return guarded([&] {
        std::vector<Tensor> all;
        for (const Lowered::Output& output : impl().step.plan().outputs) {
            Type type = impl().step.plan().values[output.value].type;
            if (output.keep > 1)
                type.shape[0] =
                    std::min<int64_t>(static_cast<int64_t>(impl().step.generation()), output.keep);
            all.push_back(tensor_of(output.name, type));
        }
        return all;
    });
}

std::string Step::device() const {
    return guarded([&] { return to_string(impl().step.device()); });
}
uint64_t Step::steps_run() const {
    return guarded([&] { return impl().step.generation(); });
}

void Step::set(const std::string& name, const void* elements, size_t bytes) {
    guarded([&] {
        Impl& mine = impl();
        const Value& value = mine.step.leaf(name);
        if (bytes != static_cast<size_t>(byte_count(value.type)))
            raise(ErrorKind::shape, "set: \"", name, "\" got ", bytes, " bytes; need ",
                  byte_count(value.type), ", ", to_string(value.type));
        mine.step.write({{value.id, Impl::tensor_at(elements, value.type)}});
        const std::lock_guard lock(mine.lock);
        mine.missing.erase(value.id);
    });
}

void Step::run(int64_t times) {
    guarded([&] {
        Impl& mine = impl();
        {
            const std::lock_guard lock(mine.lock);
            if (times > 0 && !mine.missing.empty()) {
                const Value& value = mine.step.plan().values[*mine.missing.begin()];
                raise(ErrorKind::graph, "run: input \"", value.name, "\" ", to_string(value.type),
                      " was never set; need its elements before the first run");
            }
        }
        mine.step.replay(times);
    });
}

void Step::read(const std::string& name, void* elements, size_t bytes) const {
    guarded([&] {
        aicf::Step& step = impl().step;
        TensorRef now;
        const Value* leaf = step.find_leaf(name);
        const auto& outputs = step.plan().outputs;
        const auto is_output = [&] {
            for (const Lowered::Output& output : outputs)
                if (output.name == name) return true;
            return false;
        };
        if (leaf && !is_output()) {
            now = step.read(leaf->id);
        } else {
            const Lowered::Output& output = step.output(name);
            if (step.generation() == 0)
                raise(ErrorKind::graph, "read: output \"", name,
                      "\": no step has run yet; need one before");
            now = step.read_output(output);
        }
        const auto held = static_cast<size_t>(byte_count({now.dtype, now.shape}));
        if (bytes != held)
            raise(ErrorKind::shape, "read: \"", name, "\" got room for ", bytes, " bytes; need ",
                  held, ", ", type_string(now.dtype, now.shape));
        if (held) std::memcpy(elements, now.data, held);
    });
}

void Step::save_state(const std::string& path) const {
    guarded([&] {
        Impl& mine = impl();
        std::vector<ValueId> ids;
        for (const Value* value : mine.kept()) ids.push_back(value->id);
        const std::string header = safetensors_header(mine.kept_types());
        const std::vector<TensorRef> tensors = mine.step.read(ids);
        replace(path, [&](const Put& put) {
            put(header.data(), header.size());
            for (const TensorRef& tensor : tensors)
                put(static_cast<const char*>(tensor.data),
                    static_cast<size_t>(byte_count({tensor.dtype, tensor.shape})));
        });
    });
}

void Step::load_state(const std::string& path) {
    guarded([&] {
        Impl& mine = impl();
        Source source(path);
        const std::vector<std::vector<char>> tensors = read_safetensors(source, mine.kept_types());
        aicf::Step::Inputs writes;
        size_t at = 0;
        for (const Value* value : mine.kept())
            writes.emplace_back(value->id, Impl::tensor_at(tensors[at++].data(), value->type));
        mine.step.write(writes);
    });
}

}  // namespace aicf::runtime
