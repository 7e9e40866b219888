#include "core/graph/text.h"

#include <charconv>
#include <cmath>

#include "core/base/float_mode.h"

namespace aicf {

namespace {

std::string shortest(auto number) {
    if (std::isnan(number)) return "\"NaN\"";  // as text: JSON has no such numbers
    if (std::isinf(number)) return number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    const FloatMode mode;  // to_chars would write a subnormal as 0
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
    std::string text(buffer, end);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
}

}  // namespace

std::string number_text(double number) { return shortest(number); }
std::string float_text(float number) { return shortest(number); }

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (static_cast<unsigned char>(c) < 0x20) {
            constexpr const char* kHex = "0123456789abcdef";
            result += cat("\\u00", std::string(1, kHex[c >> 4 & 15]), std::string(1, kHex[c & 15]));
        } else {
            result += c;
        }
    }
    return result + "\"";
}

std::string attr_text(const Attr& attr) {
    if (const auto* flag = std::get_if<bool>(&attr)) return *flag ? "true" : "false";
    if (const auto* integer = std::get_if<int64_t>(&attr)) return std::to_string(*integer);
    if (const auto* number = std::get_if<double>(&attr)) return number_text(*number);
    if (const auto* text = std::get_if<std::string>(&attr)) return quoted(*text);
    if (const auto* body = std::get_if<Body>(&attr)) return *body ? to_json(**body) : "null";
    return int_list(std::get<std::vector<int64_t>>(attr));
}

}  // namespace aicf
