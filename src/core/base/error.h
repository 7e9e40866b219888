// The typed errors of the public interface. Text: `where: what is wrong, with both values; what
// would be right`.
#pragma once

#include <stdexcept>
#include <string>

namespace aicf {

enum class ErrorKind {
    graph,               // an ill-formed graph: two writers, values of two graphs, ...
    shape,               // sizes that do not fit
    dtype,               // element types that do not fit
    device_unavailable,  // no driver, no device, driver too old
    device_lost,         // the device failed and cannot be used again in this process
    out_of_memory,
    capture,       // a step that cannot be captured
    stale_output,  // an output read after a later run overwrote it
    bad_value,     // a trapped NaN, infinity or index out of range
    format,        // a file that is not what it claims to be
    unsupported,   // a true limit of this backend
    internal,      // a broken invariant of ours
};

/// Truncates to 2 KB in the middle: the begin says where, the end what would be right.
inline std::string abridged(const std::string& text) {
    constexpr size_t kMost = 2048, kBegin = 1400, kEnd = 500;
    if (text.size() <= kMost) return text;
    const auto inside = [&](size_t at) {
        return (text[at] & 0xC0) == 0x80;
    };  // inside a UTF-8 character
    size_t begin = kBegin, end = text.size() - kEnd;
    while (inside(begin)) begin--;
    while (end < text.size() && inside(end)) end++;
    return text.substr(0, begin) + " ... (" + std::to_string(end - begin) +
           " characters left out) ... " + text.substr(end);
}

/// The message of a failed allocation, for which none can be built.
constexpr const char* kNoMemory =
    "memory: an allocation on the host failed; need more memory, or a smaller graph";

class Error : public std::runtime_error {
  public:
    Error(ErrorKind kind, const std::string& text)
        : std::runtime_error(abridged(text)), kind_(kind) {}
    ErrorKind kind() const { return kind_; }

  private:
    ErrorKind kind_;
};

/// Concatenates its arguments; numbers by to_string.
template <class... Parts>
std::string cat(const Parts&... parts) {
    std::string text;
    auto add = [&text](const auto& part) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
            text += std::to_string(part);
        else
            text += part;
    };
    (add(parts), ...);
    return text;
}

template <class... Parts>
[[noreturn]] void raise(ErrorKind kind, const Parts&... parts) {
    throw Error(kind, cat(parts...));
}

/// A broken invariant of ours, never a user's mistake.
inline void check(bool holds, const char* what) {
    if (!holds) raise(ErrorKind::internal, what);
}

}  // namespace aicf
