// Little-endian serialisation; the reader trusts nothing.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace aicf {

static_assert(std::endian::native == std::endian::little);

/// One function `fields(io, struct)` per struct serves both directions.
class ByteWriter {
  public:
    static constexpr bool kReads = false;
    explicit ByteWriter(std::string& to) : to_(to) {}

    template <class T>
    void number(T& value) {
        static_assert(std::is_arithmetic_v<T>);
        to_.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    template <class... T>
    void numbers(T&... values) {
        (number(values), ...);
    }
    template <class T>
    void choice(T& value, size_t, const char*) {
        static_assert(std::is_enum_v<T> && sizeof(T) <= sizeof(uint32_t));
        auto code = static_cast<uint8_t>(value);
        number(code);
    }
    void flag(bool& value) {
        auto code = static_cast<uint8_t>(value);
        number(code);
    }
    void text(std::string& value) {
        auto size = static_cast<uint32_t>(value.size());
        number(size);
        to_ += value;
    }
    template <class T, class Each>
    void list(std::vector<T>& values, const Each& each) {
        auto size = static_cast<uint32_t>(values.size());
        number(size);
        for (T& value : values) each(*this, value);
    }

  private:
    std::string& to_;
};

/// The position of the first invalid UTF-8 byte; npos: valid.
inline size_t utf8_fault(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
        const auto byte = [&](size_t i) -> uint32_t {
            return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
        };
        const uint32_t head = byte(at);
        const size_t length = head < 0x80         ? 1
                              : head >> 5 == 0x06 ? 2
                              : head >> 4 == 0x0E ? 3
                              : head >> 3 == 0x1E ? 4
                                                  : 0;
        if (length == 0) return at;
        uint32_t code = length == 1 ? head : head & (0x7Fu >> length);
        for (size_t i = 1; i < length; i++) {
            if (byte(at + i) >> 6 != 2) return at;
            code = code << 6 | (byte(at + i) & 0x3F);
        }
        constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
        if (code < kLeast[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            return at;
        at += length;
    }
    return std::string_view::npos;
}

/// FormatError for anything out of bounds, before allocating for it.
class ByteReader {
  public:
    static constexpr bool kReads = true;
    ByteReader(std::string_view bytes, std::string where)
        : bytes_(bytes), where_(std::move(where)) {}

    size_t left() const { return bytes_.size() - at_; }
    size_t at() const { return at_; }
    std::string_view take(size_t count) {
        if (count > left())
            fail("needs ", count, " bytes at ", at_, ", where ", left(), " are left");
        at_ += count;
        return bytes_.substr(at_ - count, count);
    }
    template <class T>
    void number(T& value) {
        static_assert(std::is_arithmetic_v<T>);
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
    }
    template <class... T>
    void numbers(T&... values) {
        (number(values), ...);
    }
    /// One of `count` values of an enum.
    template <class T>
    void choice(T& value, size_t count, const char* what) {
        uint8_t code = 0;
        number(code);
        if (code >= count) fail(what, " is ", code, " at ", at_ - 1, "; need one below ", count);
        value = static_cast<T>(code);
    }
    void flag(bool& value) {
        uint8_t code = 0;
        choice(code, "a flag");
        value = code != 0;
    }
    void text(std::string& value) {
        uint32_t size = 0;
        number(size);
        const std::string_view bytes = take(size);
        if (const size_t fault = utf8_fault(bytes); fault != std::string_view::npos)
            fail("a text is not UTF-8 at ", at_ - size + fault);
        value = bytes;
    }
    /// Grows while reading, so that a forged count allocates nothing.
    template <class T, class Each>
    void list(std::vector<T>& values, const Each& each) {
        uint32_t size = 0;
        number(size);
        if (size > left()) fail("a list has ", size, " items, where ", left(), " bytes are left");
        values.clear();
        for (uint32_t i = 0; i < size; i++) each(*this, values.emplace_back());
    }
    template <class... Parts>
    [[noreturn]] void fail(const Parts&... parts) const {
        raise(ErrorKind::format, where_, ": ", parts...);
    }
    /// Raises if bytes remain.
    void end() const {
        if (left()) fail(left(), " bytes follow its end at ", at_);
    }

  private:
    void choice(uint8_t& code, const char* what) {
        number(code);
        if (code > 1) fail(what, " is ", code, " at ", at_ - 1, "; need 0 or 1");
    }
    std::string_view bytes_;
    std::string where_;
    size_t at_ = 0;
};

}  // namespace aicf
