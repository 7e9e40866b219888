// The device sources that the build embeds, under the names they include each other by.
#pragma once

#include <string>
#include <vector>

#include "core/graph/sources.h"

namespace aicf::cuda {

const std::vector<SourceFile>& device_sources();  // defined by the generated embedded.cpp
/// Those, and the ones of core/abi.
const std::vector<SourceFile>& source_files();

/// A program as the compiler gets it: in the place of the sources that it includes, of those the
/// declarations whose names it uses, or that others use which it does; of a name all. The rest of
/// them would take the front end longer than most programs do.
std::string with_sources(const std::string& program);

}  // namespace aicf::cuda
