// What `tierkeep doctor` says.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tierkeep::doctor {

// A warning costs speed, safety or insight; a problem keeps a job from being started, saved or
// restored.
enum class Verdict : uint8_t { kOk, kWarning, kProblem };

struct Finding {
  std::string check;  // "mount", "memory", …: stable, for scripts
  Verdict verdict = Verdict::kOk;
  std::string text;    // what was found, with the numbers
  std::string remedy;  // what to do; empty when all is well
};
using Findings = std::vector<Finding>;

}  // namespace tierkeep::doctor
