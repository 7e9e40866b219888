# Generates embedded.cpp, which holds the device sources as strings for NVRTC.
set(kernels ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels)
set(embedded ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp)
file(GLOB device_families CONFIGURE_DEPENDS ${kernels}/cuda/*.cuh)
set(entries "")
# A source without its lines of comments, which are a seventh of it; lines keep their numbers.
function(append_source name path)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
  file(READ ${path} text)
  string(REGEX REPLACE "\n[ ]*//[^\n]*" "\n" text "\n${text}")
  string(SUBSTRING "${text}" 1 -1 text)
  string(APPEND entries "    {\"${name}\", R\"AICF(" "${text}" ")AICF\"},\n")
  set(entries "${entries}" PARENT_SCOPE)
endfunction()
foreach(name abi.h ieee.h scalar64.h elementary.h scalar.h sort.h reduce.h philox.h mma_step.h)
  append_source(core/abi/${name} ${CMAKE_CURRENT_SOURCE_DIR}/src/core/abi/${name})
endforeach()
foreach(path ${device_families})
  get_filename_component(name ${path} NAME)
  append_source(${name} ${path})
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
