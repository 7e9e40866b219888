# Generates embedded.cpp, which holds the device sources as strings for NVRTC.
set(kernels ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels)
set(embedded ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp)
file(GLOB device_families CONFIGURE_DEPENDS ${kernels}/cuda/*.cuh)
set(entries "")
foreach(name abi.h ieee.h scalar64.h scalar.h reduce.h philox.h mma_step.h)
  set(path ${CMAKE_CURRENT_SOURCE_DIR}/src/core/abi/${name})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} text)
  string(APPEND entries "    {\"core/abi/${name}\", R\"AICF(" "${text}" ")AICF\"},\n")
endforeach()
foreach(path ${device_families})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  get_filename_component(name ${path} NAME)
  file(READ ${path} text)
  string(APPEND entries "    {\"${name}\", R\"AICF(" "${text}" ")AICF\"},\n")
endforeach()
file(
  CONFIGURE
  OUTPUT ${embedded}
  CONTENT "#include \"kernels/cuda/sources.h\"

namespace aicf::cuda {

const std::vector<SourceFile>& source_files() {
    static const std::vector<SourceFile> files = {
@entries@    };
    return files;
}

}  // namespace aicf::cuda
"
  @ONLY)

# The driver's own header: from the build requirement nvidia-cuda-runtime, or from a toolkit.
execute_process(
  COMMAND
    ${Python_EXECUTABLE} -c
    "import importlib.metadata as m; d = m.distribution('nvidia-cuda-runtime'); print(next(str(d.locate_file(f).parent) for f in d.files if f.name == 'cuda.h'))"
  OUTPUT_VARIABLE cuda_header_folder
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(
  AICF_CUDA_INCLUDE cuda.h
  HINTS ${cuda_header_folder} $ENV{CUDA_HOME}/include $ENV{CUDA_PATH}/include /usr/local/cuda/include)
