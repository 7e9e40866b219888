#include "safetensors.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>

#include "core/base/bytes.h"

namespace aicf::runtime {

namespace {

constexpr uint64_t kMostHeader = 100'000'000;
constexpr const char* kCodes[kDTypes] = {"F32", "F64", "F16",  "BF16", "I32",
                                         "I64", "U8",  "BOOL", "I8",   "I16"};

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

struct Place {
    int64_t begin = 0, end = 0;
};

/// Takes a header apart. Its text is hostile: whatever is not of its grammar is a FormatError.
class HeaderReader {
  public:
    HeaderReader(std::string_view text, const std::string& where,
                 const std::vector<NamedType>& wanted)
        : text_(text), where_(where), wanted_(wanted), found_(wanted.size()) {
        for (size_t i = 0; i < wanted.size(); i++) index_.emplace(wanted[i].name, i);
    }

    /// Where the wanted tensors lie behind the header; `bytes`: of all tensors.
    std::vector<Place> read(int64_t bytes) {
        bool described = false;
        members([&](const std::string& name) {
            if (name != "__metadata__") return tensor(name);
            if (described) fail("__metadata__ stands twice");
            described = true;
            if (word("null")) return;
            members([&](const std::string&) { text(); });
        });
        space();
        if (at_ != text_.size()) fail("bytes follow the header's record");
        check_tiled(bytes);
        check_fits();
        std::vector<Place> places;
        for (const auto& place : found_) places.push_back(*place);
        return places;
    }

  private:
    template <class... Parts>
    [[noreturn]] void fail(const Parts&... parts) const {
        raise(ErrorKind::format, where_, ": ", parts...);
    }
    void space() {
        while (at_ < text_.size() && std::strchr(" \t\n\r", text_[at_]) && text_[at_]) at_++;
    }
    bool next(char c) {
        space();
        if (at_ >= text_.size() || text_[at_] != c) return false;
        at_++;
        return true;
    }
    void need(char c) {
        if (!next(c)) fail("the header has no ", std::string(1, c), " at byte ", at_);
    }
    bool word(std::string_view expected) {
        space();
        if (!text_.substr(at_).starts_with(expected)) return false;
        at_ += expected.size();
        return true;
    }

    template <class Member>
    void members(const Member& member) {
        need('{');
        if (next('}')) return;
        do {
            const std::string name = text();
            need(':');
            member(name);
        } while (next(','));
        need('}');
    }

    uint32_t unit() {
        uint32_t code = 0;
        for (int i = 0; i < 4; i++, at_++) {
            const char c = at_ < text_.size() ? text_[at_] : '\0';
            const int digit = c >= '0' && c <= '9'   ? c - '0'
                              : c >= 'a' && c <= 'f' ? c - 'a' + 10
                              : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                     : -1;
            if (digit < 0) fail("a text has a wrong escape at byte ", at_);
            code = code << 4 | static_cast<uint32_t>(digit);
        }
        return code;
    }

    static void put_utf8(std::string& to, uint32_t code) {
        const auto tail = [&](int shift) {
            to += static_cast<char>(0x80 | (code >> shift & 0x3F));
        };
        if (code < 0x80) {
            to += static_cast<char>(code);
        } else if (code < 0x800) {
            to += static_cast<char>(0xC0 | code >> 6);
            tail(0);
        } else if (code < 0x10000) {
            to += static_cast<char>(0xE0 | code >> 12);
            tail(6);
            tail(0);
        } else {
            to += static_cast<char>(0xF0 | code >> 18);
            tail(12);
            tail(6);
            tail(0);
        }
    }

    std::string text() {
        need('"');
        std::string out;
        while (at_ < text_.size() && text_[at_] != '"') {
            const char c = text_[at_++];
            if (static_cast<uint8_t>(c) < 0x20) fail("a text has a control byte at ", at_ - 1);
            if (c != '\\') {
                out += c;
                continue;
            }
            const char escape = at_ < text_.size() ? text_[at_++] : '\0';
            const char* const simple = "\"\"\\\\//b\bf\fn\nr\rt\t";
            const char* known = nullptr;
            for (const char* p = simple; *p; p += 2)
                if (*p == escape) known = p + 1;
            if (known) {
                out += *known;
                continue;
            }
            if (escape != 'u') fail("a text has a wrong escape at byte ", at_ - 1);
            uint32_t code = unit();
            if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
                at_ += 2;
                const uint32_t low = unit();
                if (low < 0xDC00 || low > 0xDFFF) fail("a text has a lone surrogate");
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
            } else if (code >= 0xD800 && code < 0xE000) {
                fail("a text has a lone surrogate");
            }
            put_utf8(out, code);
        }
        need('"');
        if (utf8_fault(out) != std::string::npos) fail("a text before byte ", at_, " is not UTF-8");
        return out;
    }

    std::vector<int64_t> integers(size_t most) {
        std::vector<int64_t> list;
        need('[');
        if (next(']')) return list;
        do {
            space();
            const size_t begin = at_;
            int64_t number = 0;
            for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; at_++)
                if (__builtin_mul_overflow(number, int64_t{10}, &number) ||
                    __builtin_add_overflow(number, text_[at_] - '0', &number))
                    fail("a number at byte ", begin, " is too large");
            if (at_ == begin || (text_[begin] == '0' && at_ > begin + 1))
                fail("byte ", begin, " is no whole number from 0 on");
            if (list.size() == most) fail("a list before byte ", at_, " has over ", most, " items");
            list.push_back(number);
        } while (next(','));
        need(']');
        return list;
    }

    void tensor(const std::string& name) {
        std::optional<std::string> code;
        std::optional<std::vector<int64_t>> shape, ends;
        members([&](const std::string& key) {
            if (key == "dtype" && !code)
                code = text();
            else if (key == "shape" && !shape)
                shape = integers(kMaxDims);
            else if (key == "data_offsets" && !ends)
                ends = integers(2);
            else
                fail("tensor \"", name, "\" has \"", key, "\"; need dtype, shape, data_offsets");
        });
        if (!code || !shape || !ends || ends->size() != 2)
            fail("tensor \"", name, "\" lacks a dtype, a shape or two data_offsets");
        const auto at = std::find(std::begin(kCodes), std::end(kCodes), *code);
        if (at == std::end(kCodes)) fail("tensor \"", name, "\" has unknown dtype \"", *code, "\"");
        const auto dtype = static_cast<DType>(at - std::begin(kCodes));
        int64_t size = dtype_size(dtype);
        for (int64_t extent : *shape)
            if (__builtin_mul_overflow(size, extent, &size))
                fail("tensor \"", name, "\" is too large");
        const Place place{(*ends)[0], (*ends)[1]};
        if (place.end - place.begin != size)
            fail("tensor \"", name, "\": bytes ", place.begin, " to ", place.end, " do not hold ",
                 size);
        all_.push_back(place);
        const auto known = index_.find(name);
        if (known == index_.end()) {
            unknown_ = name;
            return;
        }
        auto& found = found_[known->second];
        if (found) fail("tensor \"", name, "\" stands twice");
        found = place;
        const NamedType& want = wanted_[known->second];
        Dims dims;
        for (int64_t extent : *shape) dims.push(extent);
        if (misfit_.empty() && (dtype != want.dtype || !(dims == want.shape))) {
            misfit_kind_ = dtype != want.dtype ? ErrorKind::dtype : ErrorKind::shape;
            misfit_ = cat("\"", name, "\" is ", type_string(dtype, dims), "; need ",
                          type_string(want.dtype, want.shape));
        }
    }

    void check_tiled(int64_t bytes) {
        std::sort(all_.begin(), all_.end(), [](const Place& a, const Place& b) {
            return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
        });
        int64_t end = 0;
        for (const Place& place : all_) {
            if (place.begin != end) fail("tensors overlap or leave a gap at byte ", end);
            end = place.end;
        }
        if (end != bytes) fail(bytes, " bytes follow the header; its tensors have ", end);
    }

    void check_fits() const {
        for (size_t i = 0; i < wanted_.size(); i++)
            if (!found_[i])
                raise(ErrorKind::graph, where_, ": \"", wanted_[i].name,
                      "\" is missing; need exactly the step's params and states");
        if (unknown_)
            raise(ErrorKind::graph, where_, ": \"", *unknown_,
                  "\" is unknown; need exactly the step's params and states");
        if (!misfit_.empty()) raise(misfit_kind_, where_, ": ", misfit_);
    }

    std::string_view text_;
    size_t at_ = 0;
    const std::string& where_;
    const std::vector<NamedType>& wanted_;
    std::map<std::string_view, size_t> index_;
    std::vector<std::optional<Place>> found_;
    std::vector<Place> all_;
    std::optional<std::string> unknown_;
    std::string misfit_;
    ErrorKind misfit_kind_ = ErrorKind::dtype;
};

}  // namespace

std::string safetensors_header(const std::vector<NamedType>& tensors) {
    std::string header = R"({"__metadata__":{"format":"aicf","version":"1"})";
    int64_t offset = 0;
    for (const NamedType& tensor : tensors) {
        std::string shape;
        for (int64_t size : tensor.shape) shape += cat(shape.empty() ? "" : ",", size);
        const int64_t end = offset + element_count(tensor.shape) * dtype_size(tensor.dtype);
        header += cat(",", json_text(tensor.name), ":{\"dtype\":\"",
                      kCodes[static_cast<int>(tensor.dtype)], "\",\"shape\":[", shape,
                      "],\"data_offsets\":[", offset, ",", end, "]}");
        offset = end;
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const auto size = static_cast<uint64_t>(header.size());
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + header;
}

std::vector<std::vector<char>> read_safetensors(Source& source,
                                                const std::vector<NamedType>& wanted) {
    uint64_t length = 0;
    const auto fail = [&](const auto&... parts) {
        raise(ErrorKind::format, source.where(), ": ", parts...);
    };
    if (source.size() < sizeof length)
        fail(source.size(), " bytes; need a safetensors file, with its header");
    source.read(reinterpret_cast<char*>(&length), sizeof length);
    const size_t rest = source.size() - sizeof length;
    if (length > std::min<uint64_t>(kMostHeader, rest))
        fail("header of ", length, " bytes in a file of ", source.size(),
             "; need a safetensors file");
    std::string header(length, '\0');
    source.read(header.data(), header.size());
    const auto bytes = static_cast<int64_t>(rest - header.size());
    HeaderReader reader(header, source.where(), wanted);
    const std::vector<Place> places = reader.read(bytes);
    std::vector<std::vector<char>> tensors(wanted.size());
    std::vector<size_t> order;
    for (size_t i = 0; i < wanted.size(); i++) order.push_back(i);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return places[a].begin < places[b].begin; });
    for (size_t i : order) {  // they tile the rest of the file
        tensors[i].resize(static_cast<size_t>(places[i].end - places[i].begin));
        source.read(tensors[i].data(), tensors[i].size());
        if (wanted[i].dtype == DType::boolean &&
            std::any_of(tensors[i].begin(), tensors[i].end(),
                        [](char byte) { return static_cast<uint8_t>(byte) > 1; }))
            fail("\"", wanted[i].name, "\": a bool byte is neither 0 nor 1");
    }
    source.check_unchanged();
    return tensors;
}

}  // namespace aicf::runtime
