# Everything comes from Debian 12 packages (scripts/deps.sh names them).
find_package(Threads REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Protobuf REQUIRED)
find_package(fmt REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED COMPONENTS core)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
# Its Cflags say what the library was built with: classes have another layout without them.
pkg_check_modules(CPP_HTTPLIB REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(ISAL REQUIRED IMPORTED_TARGET libisal)

# BLAKE3 as built into LLVM's support library (static; only the hashing objects are linked).
find_library(LLVM_SUPPORT LLVMSupport PATHS /usr/lib/llvm-16/lib REQUIRED NO_DEFAULT_PATH)
find_path(LLVM_C_INCLUDE llvm-c/blake3.h PATHS /usr/lib/llvm-16/include /usr/include/llvm-c-16 REQUIRED)
add_library(tk_blake3 INTERFACE)
target_include_directories(tk_blake3 SYSTEM INTERFACE ${LLVM_C_INCLUDE})
target_link_libraries(tk_blake3 INTERFACE ${LLVM_SUPPORT})

# The simulator's allocator: a third of its time goes to malloc, by glibc's half as much again.
# Sanitizers bring their own.
set(TIERKEEP_FAST_MALLOC "")
if(NOT TIERKEEP_SANITIZE)
  find_library(MIMALLOC_LIBRARY mimalloc REQUIRED)
  set(TIERKEEP_FAST_MALLOC -Wl,--push-state,--no-as-needed,${MIMALLOC_LIBRARY},--pop-state)
endif()

if(TIERKEEP_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck CONFIG REQUIRED)
endif()
