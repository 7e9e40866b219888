// The sources of core/abi, which the build embeds under the names they include each other by.
#pragma once

#include <string>
#include <vector>

namespace aicf {

struct SourceFile {
    const char* name;
    std::string text;
};
const std::vector<SourceFile>& abi_sources();  // defined by the generated abi_sources.cpp

}  // namespace aicf
