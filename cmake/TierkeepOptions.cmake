# Compiler, linker and sanitizer settings that every target shares.
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
# CHECK() and assertions stay on in every build; -O2 is enough, the hot loops are in libraries.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
# A test that takes longer hangs, also on a busy machine.
set(TIERKEEP_TEST_SECONDS_MAX 120)
if(TIERKEEP_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  set(TIERKEEP_TEST_SECONDS_MAX 600)
endif()
# Test files spend no time in their own code: not optimizing it saves 40 % of their compilation.
set(TIERKEEP_TEST_OPTIONS $<$<CONFIG:Release>:-O0>)

# One cache serves all build folders: paths below the source folder are hashed as relative ones.
# The two settings for precompiled headers are those that ccache's manual asks for.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(ccache_command ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
    ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${ccache_command})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache_command})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wimplicit-fallthrough)
# Options are given by designated initializers; what isn't named has its default on purpose.
add_compile_options(-Wno-missing-field-initializers)
# GCC 12 reports these inside libstdc++ templates at -O2 where nothing is wrong.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overread -Wno-dangling-pointer)
endif()
if(TIERKEEP_WERROR)
  add_compile_options(-Werror -Winvalid-pch)
endif()
if(TIERKEEP_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TIERKEEP_SANITIZE)
  add_compile_options(-fsanitize=${TIERKEEP_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TIERKEEP_SANITIZE})
endif()
