#include "sim/nemesis.h"

#include <fmt/format.h>

namespace tierkeep::sim {
namespace {

constexpr uint64_t kOperationsMax = 400;

}  // namespace

void Nemesis::Begin() {
  active_ = true;
  Prng& prng = parts_.world->prng();
  kinds_ = {
      {"crash", &Nemesis::Crash, {}},
      {"crashes", &Nemesis::CrashSeveral, {}},
      {"restart", &Nemesis::RestartJob, {}},
  };
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (!prng.Chance(1, 2)) continue;
    kinds_[i].every = parts_.world->Between(10s, 120s);
    Plan(i);
  }
}

void Nemesis::Plan(size_t kind) {
  const Duration every = kinds_[kind].every;
  parts_.world->After(parts_.world->Between(every / 10, every * 2), [this, kind] {
    if (!active_) return;
    (this->*kinds_[kind].act)();
    Plan(kind);
  });
}

void Nemesis::End() { active_ = false; }

std::string Nemesis::Describe() const {
  std::string text;
  for (const Kind& kind : kinds_) {
    if (kind.every > Duration{}) {
      text += fmt::format("{}{} every {}", text.empty() ? "" : ", ", kind.name,
                          FormatDuration(kind.every));
    }
  }
  return text.empty() ? "no faults" : text;
}

void Nemesis::CrashAgent(size_t i) {
  if (!host(i).up()) return;
  parts_.world->Fault("agent crash");
  host(i).KillAgentAfter(parts_.world->prng().Below(kOperationsMax));
}

void Nemesis::LoseMachine(size_t i, bool replaced) {
  parts_.world->Fault(replaced ? "machine replaced" : "RAM lost");
  host(i).LoseMachine(replaced);
  parts_.job->HostLost(i);
}

void Nemesis::Crash() { CrashAgent(AnyHost()); }

void Nemesis::CrashSeveral() {
  for (size_t i = 0; i < parts_.hosts->size(); ++i) {
    if (parts_.world->prng().Chance(1, 2)) CrashAgent(i);
  }
}

void Nemesis::RestartJob() {
  parts_.world->Fault("job restart");
  parts_.job->StartLater(1ms);
}

}  // namespace tierkeep::sim
