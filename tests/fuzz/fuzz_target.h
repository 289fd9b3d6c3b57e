// What every fuzz target of this folder defines, one file a target. libfuzzer_main.cc makes a
// coverage-guided fuzzer of it, replay_main.cc an ordinary test.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tierkeep::fuzz {

// Handles one input. What must hold and doesn't ends the process (TK_CHECK). Depends on nothing
// but the input and leaves nothing behind.
void RunOne(std::string_view input);

// Good inputs to begin with, made by the project's own encoders: always the same ones.
std::vector<std::string> Seeds();

// Takes values off the front of an input; past its end everything is zero or empty.
class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }
  unsigned Byte() {
    if (rest_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  unsigned Two() {
    const unsigned high = Byte();
    return high << 8 | Byte();
  }
  std::string_view Bytes(size_t n) {
    const std::string_view taken = rest_.substr(0, n);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view Text() { return Bytes(Two()); }

 private:
  std::string_view rest_;
};

// The other direction, for Seeds().
inline std::string Two(size_t n) {
  return {static_cast<char>(n >> 8 & 0xff), static_cast<char>(n & 0xff)};
}
// A literal with its zero bytes.
template <size_t N>
std::string Raw(const char (&literal)[N]) {
  return std::string(literal, N - 1);
}
inline std::string Text(std::string_view bytes) { return Two(bytes.size()) + std::string(bytes); }

}  // namespace tierkeep::fuzz
