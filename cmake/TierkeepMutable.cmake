# The libraries that hold mutations and probes (src/base/mutation.h), built a second time with
# TIERKEEP_MUTABLE. Only the simulator's tests are linked with them. Not part of `all`: what needs
# them depends on them.

# tierkeep_mutable(NAME [DEPS lib...]): tk_NAME_mutable from the sources of tk_NAME.
function(tierkeep_mutable name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  get_target_property(sources tk_${name} SOURCES)
  add_library(tk_${name}_mutable STATIC EXCLUDE_FROM_ALL ${sources})
  target_precompile_headers(tk_${name}_mutable REUSE_FROM tk_pch)
  target_include_directories(tk_${name}_mutable PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(tk_${name}_mutable PUBLIC TIERKEEP_MUTABLE)
  target_link_libraries(tk_${name}_mutable PUBLIC ${ARG_DEPS} fmt::fmt Threads::Threads)
endfunction()
