// The device sources that the build embeds, under the names they include each other by.
#pragma once

#include <string>
#include <vector>

namespace aicf::cuda {

struct SourceFile {
    const char* name;
    std::string text;
};
const std::vector<SourceFile>& source_files();  // defined by the generated embedded.cpp

}  // namespace aicf::cuda
