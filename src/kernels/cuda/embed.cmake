# Generates embedded.cpp, which holds the device sources as strings for NVRTC.
set(kernels ${CMAKE_CURRENT_SOURCE_DIR}/src/kernels)
set(embedded ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp)
file(GLOB device_families CONFIGURE_DEPENDS ${kernels}/cuda/*.cuh)
set(entries "")
foreach(path ${device_families})
  get_filename_component(name ${path} NAME)
  append_source(entries ${name} ${path})
endforeach()
file(
  CONFIGURE
  OUTPUT ${embedded}
  CONTENT "#include \"kernels/cuda/sources.h\"

namespace aicf::cuda {

const std::vector<SourceFile>& device_sources() {
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
