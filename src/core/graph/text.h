// How dumps write numbers, names and lists, in text and JSON alike.
#pragma once

#include <string>

#include "core/graph/ir.h"

namespace aicf {

/// The shortest text that reads back equal; what JSON cannot express is quoted.
std::string number_text(double number);
std::string float_text(float number);
std::string quoted(const std::string& text);
std::string attr_text(const Attr& attr);

template <class List, class Text>
std::string joined(const List& list, Text text, const char* between = ", ") {
    std::string result;
    for (const auto& item : list) result += (result.empty() ? "" : between) + text(item);
    return result;
}
std::string int_list(const auto& list) {
    return "[" + joined(list, [](int64_t i) { return std::to_string(i); }) + "]";
}

}  // namespace aicf
