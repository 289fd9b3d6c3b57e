// A seeded generator (xoshiro256**), the same numbers on every machine; no std distributions,
// whose results differ between libraries. Tests print the seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tierkeep {

class Prng {
 public:
  explicit Prng(uint64_t seed);
  uint64_t Next();
  // Uniform in [0, bound); bound > 0.
  uint64_t Below(uint64_t bound);
  // True `numerator` times in `denominator`.
  bool Chance(uint64_t numerator, uint64_t denominator) { return Below(denominator) < numerator; }
  std::string Bytes(size_t n);

 private:
  uint64_t s_[4];
};

}  // namespace tierkeep
