# find_package(aicf CONFIG) gives the target aicf::aicf; `python -m aicf --cmake-dir` prints where
# this file lies.
get_filename_component(_aicf_root "${CMAKE_CURRENT_LIST_DIR}/.." ABSOLUTE)
if(NOT TARGET aicf::aicf)
  add_library(aicf::aicf SHARED IMPORTED)
  set_target_properties(
    aicf::aicf
    PROPERTIES IMPORTED_LOCATION "${_aicf_root}/libaicf${CMAKE_SHARED_LIBRARY_SUFFIX}"
               IMPORTED_NO_SONAME FALSE
               INTERFACE_INCLUDE_DIRECTORIES "${_aicf_root}/include"
               INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
unset(_aicf_root)
