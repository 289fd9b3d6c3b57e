# The libraries that hold mutations and probes (src/base/mutation.h), for the simulator's tests alone.
# Not part of `all`: what needs them depends on them.

# tierkeep_mutable(NAME [DEPS lib...]): tk_NAME_mutable, the objects of tk_NAME, but those of files
# that include base/mutation.h compiled a second time, with TIERKEEP_MUTABLE.
# scripts/check_mutations.py sees that no mark is missing.
function(tierkeep_mutable name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  get_target_property(sources tk_${name} SOURCES)
  set(marked)
  set(objects "/none/")
  foreach(source ${sources})
    file(STRINGS ${source} marks REGEX "#include \"base/mutation.h\"" LIMIT_COUNT 1)
    if(marks)
      list(APPEND marked ${source})
      get_filename_component(file ${source} NAME)
      string(APPEND objects "|/${file}[.]o$")
    endif()
  endforeach()
  add_library(tk_${name}_mutable STATIC EXCLUDE_FROM_ALL ${marked}
    $<FILTER:$<TARGET_OBJECTS:tk_${name}>,EXCLUDE,${objects}>)
  set_target_properties(tk_${name}_mutable PROPERTIES LINKER_LANGUAGE CXX)
  target_precompile_headers(tk_${name}_mutable REUSE_FROM tk_pch)
  target_include_directories(tk_${name}_mutable PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_definitions(tk_${name}_mutable PUBLIC TIERKEEP_MUTABLE)
  target_link_libraries(tk_${name}_mutable PUBLIC ${ARG_DEPS} fmt::fmt Threads::Threads)
endfunction()
