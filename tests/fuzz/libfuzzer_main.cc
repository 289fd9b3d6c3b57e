// A target as libFuzzer wants it. `--write-seeds=DIR` writes the target's seeds there and ends.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tierkeep::fuzz::RunOne({reinterpret_cast<const char*>(data), size});
  return 0;
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--write-seeds=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (!argument.starts_with(kFlag)) continue;
    int number = 0;
    for (const std::string& seed : tierkeep::fuzz::Seeds()) {
      std::ofstream out(
          std::string(argument.substr(kFlag.size())) + "/seed" + std::to_string(number++),
          std::ios::binary);
      out << seed;
      out.close();
      if (!out) {
        std::fprintf(stderr, "fuzz: can't write a seed to %s\n",
                     argument.substr(kFlag.size()).data());
        std::exit(1);
      }
    }
    std::exit(0);
  }
  return 0;
}
