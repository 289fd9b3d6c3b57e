// A target as an ordinary test: its seeds, some thousand damaged ones, and the files and folders
// named on the command line (inputs that once broke something). TIERKEEP_TEST_SEED repeats a run.

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "base/prng.h"
#include "format/format_testutil.h"
#include "fuzz_target.h"

namespace {

using tierkeep::Prng;

constexpr int kDamagedRuns = 2000;
constexpr size_t kBytesMax = 1 << 16;

// One to four of: a bit flipped, bytes cut out, bytes put in, another seed's bytes put in.
std::string Damage(std::string bytes, const std::vector<std::string>& seeds, Prng* prng) {
  for (uint64_t n = 1 + prng->Below(4); n > 0; --n) {
    const size_t at = prng->Below(bytes.size() + 1);
    switch (prng->Below(4)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ 1 << prng->Below(8));
        break;
      case 1:
        bytes.erase(at, prng->Chance(1, 8) ? std::string::npos : 1 + prng->Below(8));
        break;
      case 2:
        bytes.insert(at, prng->Bytes(1 + prng->Below(8)));
        break;
      default: {
        const std::string& other = seeds[prng->Below(seeds.size())];
        const size_t from = prng->Below(other.size() + 1);
        bytes.insert(at, other.substr(from, prng->Below(64)));
      }
    }
  }
  return bytes.substr(0, kBytesMax);
}

void RunFiles(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) RunFiles(entry.path());
    return;
  }
  std::cout << "input " << path << std::endl;
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw std::runtime_error("can't read " + path.string());
  tierkeep::fuzz::RunOne(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) RunFiles(argv[i]);
  if (argc > 1) return 0;
  const uint64_t seed = tierkeep::TestSeed();
  std::cout << "TIERKEEP_TEST_SEED=" << seed << std::endl;
  const std::vector<std::string> seeds = tierkeep::fuzz::Seeds();
  tierkeep::fuzz::RunOne("");
  for (const std::string& input : seeds) tierkeep::fuzz::RunOne(input);
  Prng prng(seed);
  for (int i = 0; i < kDamagedRuns; ++i) {
    tierkeep::fuzz::RunOne(Damage(seeds[prng.Below(seeds.size())], seeds, &prng));
  }
  return 0;
}
