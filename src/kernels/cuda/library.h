// Libraries of CUDA's that wheels or a toolkit brought, found at run time.
#pragma once

#include <string>
#include <vector>

namespace aicf::cuda {

/// Python's sys.path, where wheels lie.
void set_library_folders(std::vector<std::string> folders);

/// What may be the library `name` ("libnvrtc.so."), the best first: files that this process has
/// mapped, those of wheels (`wheels`: their folders inside sys.path's nvidia/) and of a toolkit, in
/// each folder the newest major, then sonames. None newer than the driver; 0: any.
std::vector<std::string> library_files(const std::string& name,
                                       const std::vector<std::string>& wheels, int driver_major);

}  // namespace aicf::cuda
