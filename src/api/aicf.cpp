// The public runtime, over the core: translation only.
#include "aicf/aicf.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <system_error>

#include "core/base/aside.h"
#include "core/base/fork.h"
#include "core/run/step.h"
#include "kernels/cpu/backend.h"
#ifdef AICF_CUDA
#include "kernels/cuda/backend.h"
#endif

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
        case ErrorKind::format:
            return "FormatError";
        case ErrorKind::unsupported:
            return "Unsupported";
        case ErrorKind::internal:
            break;
    }
    return "InternalError";
}

/// What the core throws leaves as the public error.
template <class Act>
auto guarded(const Act& act) -> decltype(act()) {
    try {
        return act();
    } catch (const aicf::Error& error) {
        throw Error(kind_text(error.kind()), error.what());
    } catch (const std::bad_alloc&) {
        throw Error("OutOfMemory", kNoMemory);
    }
}

[[noreturn]] void fail(const char* doing, const std::string& path) {
    throw Error("OSError", cat(doing, " \"", path, "\": ", std::strerror(errno)));
}

/// A file descriptor, closed at the end.
struct File {
    int fd;
    ~File() {
        if (fd >= 0) ::close(fd);
    }
};

std::vector<char> content(const std::string& path) {
    const File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    struct stat status = {};
    if (file.fd < 0 || ::fstat(file.fd, &status)) fail("load", path);
    if (!S_ISREG(status.st_mode))
        throw Error("FormatError", cat("load \"", path, "\": need a regular file"));
    std::vector<char> bytes(static_cast<size_t>(status.st_size));
    for (size_t at = 0; at < bytes.size();) {
        const ssize_t got = ::read(file.fd, bytes.data() + at, bytes.size() - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail("load", path);
        if (got == 0) throw Error("FormatError", cat("load \"", path, "\": it became shorter"));
        at += static_cast<size_t>(got);
    }
    return bytes;
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

/// As Python's json writes text.
std::string json_text(const std::string& text) {
    std::string out = "\"";
    const auto unit = [&](uint32_t code) {
        char hex[8];
        std::snprintf(hex, sizeof hex, "\\u%04x", code);
        out += hex;
    };
    for (size_t at = 0; at < text.size();) {
        const auto head = static_cast<uint8_t>(text[at]);
        const size_t length = head < 0x80 ? 1 : head < 0xE0 ? 2 : head < 0xF0 ? 3 : 4;
        uint32_t code = length == 1 ? head : head & (0x7Fu >> length);
        for (size_t i = 1; i < length && at + i < text.size(); i++)
            code = code << 6 | (static_cast<uint8_t>(text[at + i]) & 0x3F);
        at += length;
        const char* const escaped = "\"\"\\\\\bb\ff\nn\rr\tt";
        const char* found = nullptr;
        for (const char* p = escaped; *p; p += 2)
            if (static_cast<uint32_t>(*p) == code) found = p + 1;
        if (found) {
            out += '\\';
            out += *found;
        } else if (code >= 0x20 && code < 0x7F) {
            out += static_cast<char>(code);
        } else if (code < 0x10000) {
            unit(code);
        } else {
            unit(0xD800 + ((code - 0x10000) >> 10));
            unit(0xDC00 + ((code - 0x10000) & 0x3FF));
        }
    }
    return out + '"';
}

const char* safetensors_code(DType dtype) {
    constexpr const char* codes[kDTypes] = {"F32", "F64", "F16", "BF16",
                                            "I32", "I64", "U8",  "BOOL"};
    return codes[static_cast<int>(dtype)];
}

void write_all(int fd, const char* from, size_t bytes, const std::string& path) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t put = ::write(fd, from + at, bytes - at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) fail("save", path);
        at += static_cast<size_t>(put);
    }
}

/// Writes a file beside the target and renames it, as Python's save does: links are followed to
/// their file, an existing file keeps its mode and owner, and is left whole if writing fails.
template <class Write>
void replace(const std::string& path, const Write& write) {
    struct stat old = {};
    const bool exists = ::stat(path.c_str(), &old) == 0;
    if (exists && !S_ISREG(old.st_mode))
        throw Error("OSError", cat("save \"", path, "\": it exists and is no regular file"));
    std::string target = path;
    if (char* const real = exists ? ::realpath(path.c_str(), nullptr) : nullptr) {
        target = real;
        std::free(real);
    }
    std::string beside;
    int fd = -1;
    std::random_device random;
    for (int tries = 0; fd < 0 && tries < 100; tries++) {
        beside = cat(target, ".", random(), ".tmp");
        fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) fail("save", path);
    const File file{fd};
    try {
        write(fd);
        if (exists && (old.st_uid != ::geteuid() || old.st_gid != ::getegid()))
            (void)!::fchown(fd, old.st_uid, old.st_gid);  // a wish: not everyone may
        if ((exists && ::fchmod(fd, old.st_mode & 07777)) || ::fsync(fd) ||
            ::rename(beside.c_str(), target.c_str()))
            fail("save", path);
    } catch (...) {
        ::unlink(beside.c_str());
        throw;
    }
    const size_t slash = target.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : target.substr(0, slash + 1);
    const File held{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (held.fd >= 0) ::fsync(held.fd);
}

}  // namespace

Error::Error(std::string kind, const std::string& text)
    : std::runtime_error(text), kind_(std::move(kind)) {}
Error::~Error() = default;

struct Step::Impl {
    Impl(const Executable& file, const aicf::Step::Options& options) : step(file, options) {}
    mutable aicf::Step step;

    std::vector<Tensor> leaves(Role role) const {
        std::vector<Tensor> all;
        for (const Value& value : step.plan().values)
            if (value.role == role) all.push_back(tensor_of(value.name, value.type));
        return all;
    }
};

Step::Step(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Step::Step(Step&& other) noexcept = default;
Step& Step::operator=(Step&& other) noexcept = default;
Step::~Step() = default;

Step Step::load(const std::string& path, const std::string& device) {
    return guarded([&] {
        register_backends();
        const std::vector<char> bytes = content(path);
        const Executable file({bytes.data(), bytes.size()}, cat("load \"", path, "\""));
        aicf::Step::Options options;
        options.device.kind = file.plan().device;
        if (!device.empty()) options.device = device_of(device);
        return Step(std::make_unique<Impl>(file, options));
    });
}

std::vector<Tensor> Step::inputs() const {
    return guarded([&] { return impl_->leaves(Role::input); });
}
std::vector<Tensor> Step::params() const {
    return guarded([&] { return impl_->leaves(Role::param); });
}
std::vector<Tensor> Step::states() const {
    return guarded([&] { return impl_->leaves(Role::state); });
}

std::vector<Tensor> Step::outputs() const {
    return guarded([&] {
        std::vector<Tensor> all;
        for (const Lowered::Output& output : impl_->step.plan().outputs) {
            Type type = impl_->step.plan().values[output.value].type;
            if (output.keep > 1)
                type.shape[0] =
                    std::min<int64_t>(static_cast<int64_t>(impl_->step.generation()), output.keep);
            all.push_back(tensor_of(output.name, type));
        }
        return all;
    });
}

std::string Step::device() const { return to_string(impl_->step.device()); }
uint64_t Step::steps_run() const { return impl_->step.generation(); }

void Step::set(const std::string& name, const void* elements, size_t bytes) {
    guarded([&] {
        const Value& value = impl_->step.leaf(name);
        TensorRef tensor;
        tensor.data = const_cast<void*>(elements);
        tensor.dtype = value.type.dtype;
        tensor.shape = value.type.shape;
        tensor.strides = contiguous_strides(tensor.shape);
        if (bytes != static_cast<size_t>(byte_count(value.type)))
            raise(ErrorKind::shape, "set: \"", name, "\" got ", bytes, " bytes; need ",
                  byte_count(value.type), ", ", to_string(value.type));
        impl_->step.write({{value.id, tensor}});
    });
}

void Step::run(int64_t times) {
    guarded([&] { impl_->step.replay(times); });
}

void Step::read(const std::string& name, void* elements, size_t bytes) const {
    guarded([&] {
        aicf::Step& step = impl_->step;
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
                raise(ErrorKind::graph, "read: output \"", name, "\": no step has run yet");
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
        std::vector<ValueId> ids;
        std::string header = R"({"__metadata__":{"format":"aicf","version":"1"})";
        int64_t offset = 0;
        for (const Role role : {Role::param, Role::state})
            for (const Value& value : impl_->step.plan().values) {
                if (value.role != role) continue;
                std::string shape;
                for (int64_t size : value.type.shape) shape += cat(shape.empty() ? "" : ",", size);
                const int64_t end = offset + byte_count(value.type);
                header += cat(",", json_text(value.name), ":{\"dtype\":\"",
                              safetensors_code(value.type.dtype), "\",\"shape\":[", shape,
                              "],\"data_offsets\":[", offset, ",", end, "]}");
                offset = end;
                ids.push_back(value.id);
            }
        header += "}";
        header.resize((header.size() + 7) / 8 * 8, ' ');
        const std::vector<TensorRef> tensors = impl_->step.read(ids);

        replace(path, [&](int fd) {
            auto size = static_cast<uint64_t>(header.size());
            write_all(fd, reinterpret_cast<const char*>(&size), sizeof size, path);
            write_all(fd, header.data(), header.size(), path);
            for (const TensorRef& tensor : tensors)
                write_all(fd, static_cast<const char*>(tensor.data),
                          static_cast<size_t>(byte_count({tensor.dtype, tensor.shape})), path);
        });
    });
}

}  // namespace aicf::runtime
