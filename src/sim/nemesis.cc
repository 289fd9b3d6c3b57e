#include "sim/nemesis.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "format/store_names.h"

namespace tierkeep::sim {
namespace {

constexpr uint64_t kOperationsMax = 400;
constexpr Duration kCut = 60s;
constexpr Duration kLongCut = 300s;
constexpr uint64_t kVanishDraw = 0x76616e697368;

}  // namespace

// ---- the plan ----------------------------------------------------------------------------------

void Nemesis::ChooseKinds() {
  kinds_ = {
      {"agent crashes", &Nemesis::Crash, {}},
      {"several crashes at once", &Nemesis::CrashSeveral, {}},
      {"job restarts", &Nemesis::RestartJob, {}},
      {"killed processes", &Nemesis::KillProcess, {}},
      {"moved ranks", &Nemesis::MoveRanks, {}},
      {"swapped hosts", &Nemesis::SwapHost, {}},
      {"changed worlds", &Nemesis::ChangeWorld, {}},
      {"lost RAM", &Nemesis::LoseRam, {}},
      {"replaced machines", &Nemesis::ReplaceMachine, {}},
      {"large losses", &Nemesis::LoseMuch, {}},
      {"broken connections", &Nemesis::BreakConnection, {}},
      {"partitions", &Nemesis::Partition, {}},
      {"one-way partitions", &Nemesis::PartitionOneWay, {}},
      {"rendezvous away", &Nemesis::RendezvousAway, {}},
      {"damage at rest", &Nemesis::Damage, {}},
      {"changed checkpoints", &Nemesis::ChangeRestored, {}},
      {"skip orders", &Nemesis::OrderSkip, {}},
      {"foreign leftovers", &Nemesis::LeaveForeignThings, {}},
      {"full mounts", &Nemesis::FillMount, {}},
      {"wall clock jumps", &Nemesis::JumpWall, {}},
      {"suspended hosts", &Nemesis::SleepHost, {}},
      {"slow hosts", &Nemesis::SlowHost, {}},
      {"file errors", &Nemesis::FileErrors, {}},
  };
  Prng& prng = parts_.world->prng();
  for (size_t i = 0; i < kinds_.size(); ++i) {
    const bool rare = kinds_[i].act == &Nemesis::ChangeWorld ||
                      kinds_[i].act == &Nemesis::LoseMuch ||
                      kinds_[i].act == &Nemesis::FileErrors || kinds_[i].act == &Nemesis::OrderSkip;
    const bool moves = kinds_[i].act == &Nemesis::MoveRanks ||
                       kinds_[i].act == &Nemesis::SwapHost ||
                       kinds_[i].act == &Nemesis::ChangeWorld;
    if (!prng.Chance(1, rare ? 8 : 2) || (moves && !parts_.ranks_move)) continue;
    kinds_[i].every = rare ? parts_.world->Between(100s, 400s) : parts_.world->Between(15s, 200s);
    Plan(i);
  }
  // Drawn apart, so that the schedules without it stay what they were.
  Prng apart(parts_.seed ^ kVanishDraw);
  if (!apart.Chance(1, 3)) return;
  kinds_.push_back({"vanished volumes", &Nemesis::VanishOne, 15s + 1s * apart.Below(185)});
  Plan(kinds_.size() - 1);
}

void Nemesis::ChooseRates() {
  Prng& prng = parts_.world->prng();
  const auto rate = [&](uint64_t most) -> uint32_t {
    return prng.Chance(1, 2) ? 0 : static_cast<uint32_t>(1 + prng.Below(most));
  };
  NetworkRates network;
  network.lost = rate(10'000);
  network.late = rate(50'000);
  network.late_by = parts_.world->Between(1ms, 8s);
  network.replayed = rate(100'000);
  network.refused = rate(100'000);
  network.duplicated = rate(50'000);
  network.overtaken = rate(10'000);
  parts_.network->set_rates(network);
  parts_.rendezvous->set_rates({rate(50'000), rate(200'000), rate(100'000)});
  *parts_.data_rates = {rate(20'000), rate(50'000)};
  for (size_t i = 0; i < hosts(); ++i) {
    if (!prng.Chance(1, 2)) continue;
    host(i).clock().SetDrift(static_cast<int64_t>(prng.Below(100'000)) - 50'000);
    parts_.world->Fault("clock drift");
  }
}

void Nemesis::Begin() {
  active_ = true;
  ChooseRates();
  ChooseKinds();
}

void Nemesis::Plan(size_t kind) {
  const Duration every = kinds_[kind].every;
  parts_.world->After(parts_.world->Between(every / 10, every * 2), [this, kind] {
    if (!active_) return;
    (this->*kinds_[kind].act)();
    Plan(kind);
  });
}

void Nemesis::For(Duration min, Duration max, std::function<void()> undo) {
  parts_.world->After(parts_.world->Between(min, max), std::move(undo));
}

void Nemesis::End() {
  active_ = false;
  parts_.network->set_rates({});
  parts_.network->MendAll();
  parts_.rendezvous->set_rates({});
  parts_.rendezvous->set_away(false);
  *parts_.data_rates = {};
  *parts_.file_rates = {};
  for (size_t i = 0; i < hosts(); ++i) {
    host(i).mount().set_bytes_max(parts_.mount_bytes);
    host(i).Disturb();
    host(i).speed().slow = 1;
    parts_.network->set_slow(i, 1);
    // Whoever runs the machines does this where an agent says that it could not read its store.
    if (file_errors_) host(i).KillAgent();
  }
  parts_.ledger->Disturb();
}

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

// ---- processes and machines --------------------------------------------------------------------

void Nemesis::CrashAgent(size_t i) {
  if (!host(i).up()) return;
  parts_.world->Fault("agent crash");
  host(i).KillAgentAfter(parts_.world->prng().Below(kOperationsMax));
}

void Nemesis::Crash() { CrashAgent(AnyHost()); }

void Nemesis::CrashSeveral() {
  for (size_t i = 0; i < hosts(); ++i) {
    if (parts_.world->prng().Chance(1, 2)) CrashAgent(i);
  }
}

void Nemesis::RestartJob() {
  parts_.world->Fault("job restart");
  parts_.job->StartLater(1ms);
}

void Nemesis::KillProcess() {
  parts_.world->Fault("job process killed");
  parts_.job->KillProcess(AnyHost());
}

void Nemesis::MoveRanks() {
  parts_.world->Fault("ranks moved");
  parts_.job->ShuffleRanks();
  parts_.job->StartLater(1ms);
}

void Nemesis::SwapHost() {
  parts_.world->Fault("host swapped");
  parts_.job->SwapHost();
  parts_.job->StartLater(1ms);
}

// Another number of nodes, or another job on the same machines.
void Nemesis::ChangeWorld() {
  JobShape shape = parts_.job->shape();
  if (parts_.world->prng().Chance(1, 2)) {
    shape.name = shape.name == "train" ? "other" : "train";
    parts_.world->Fault("another job");
  } else if (shape.replicas == 1 && !shape.peer_ranks &&
             (shape.nodes > 3 || shape.nodes < hosts())) {
    const bool grows =
        shape.nodes < hosts() && (shape.nodes <= 3 || parts_.world->prng().Chance(1, 2));
    shape.nodes = grows ? shape.nodes + 1 : shape.nodes - 1;
    shape.peers = 1;
    parts_.world->Fault("world changed");
  } else {
    return;
  }
  parts_.job->SetShape(shape);
  parts_.job->StartLater(1ms);
}

void Nemesis::LoseMachine(size_t i, bool replaced) {
  parts_.world->Fault(replaced ? "machine replaced" : "RAM lost");
  parts_.ledger->Disturb();
  parts_.ledger->OnLost();
  host(i).LoseMachine(replaced);
  parts_.job->HostLost(i);
}

void Nemesis::VanishVolume(size_t i) {
  parts_.world->Fault("RAM volume vanished");
  parts_.ledger->Disturb();
  parts_.ledger->OnLost();
  host(i).VanishVolume();
  parts_.job->HostLost(i);
}

bool Nemesis::LoseOne() {
  const size_t first = AnyHost();
  for (size_t n = 0; n < hosts(); ++n) {
    const size_t i = (first + n) % hosts();
    if (!parts_.ledger->MayLose(i)) continue;
    LoseMachine(i, parts_.world->prng().Chance(1, 2));
    return true;
  }
  return false;
}

void Nemesis::LoseRam() {
  const size_t i = AnyHost();
  if (parts_.ledger->MayLose(i)) LoseMachine(i, false);
}

void Nemesis::ReplaceMachine() {
  const size_t i = AnyHost();
  if (parts_.ledger->MayLose(i)) LoseMachine(i, true);
}

void Nemesis::VanishOne() {
  const size_t i = AnyHost();
  // What is lost without an agent there is "lost RAM".
  if (host(i).sees_mount() && parts_.ledger->MayLose(i)) VanishVolume(i);
}

void Nemesis::LoseMuch() {
  parts_.ledger->GiveUpFloor();
  for (size_t i = 0; i < hosts(); ++i) {
    if (parts_.world->prng().Chance(2, 3)) LoseMachine(i, parts_.world->prng().Chance(1, 2));
  }
}

// ---- network, rendezvous -----------------------------------------------------------------------

void Nemesis::BreakConnection() {
  if (parts_.network->BreakOne(AnyHost())) parts_.world->Fault("connection broken");
}

void Nemesis::Partition() {
  parts_.world->Fault("partition");
  parts_.ledger->BeginPartition();
  std::vector<bool> side(hosts());
  for (size_t i = 0; i < hosts(); ++i) side[i] = parts_.world->prng().Chance(1, 3);
  for (size_t a = 0; a < hosts(); ++a) {
    for (size_t b = 0; b < hosts(); ++b) {
      if (side[a] != side[b]) parts_.network->Cut(a, b);
    }
  }
  For(1s, parts_.world->prng().Chance(1, 6) ? kLongCut : kCut, [this] {
    parts_.ledger->EndPartition();
    parts_.network->MendAll();
  });
}

void Nemesis::PartitionOneWay() {
  parts_.world->Fault("one-way partition");
  parts_.ledger->BeginPartition();
  const size_t from = AnyHost();
  const bool all = parts_.world->prng().Chance(1, 3);
  const size_t to = AnyHost();
  for (size_t i = 0; i < hosts(); ++i) {
    if (all || i == to) parts_.network->Cut(from, i);
  }
  For(1s, parts_.world->prng().Chance(1, 6) ? kLongCut : kCut, [this] {
    parts_.ledger->EndPartition();
    parts_.network->MendAll();
  });
}

void Nemesis::RendezvousAway() {
  parts_.world->Fault("rendezvous away");
  parts_.rendezvous->set_away(true);
  For(1s, 60s, [this] { parts_.rendezvous->set_away(false); });
}

// ---- stores ------------------------------------------------------------------------------------

bool Nemesis::DamageShard(size_t i) {
  Prng& prng = parts_.world->prng();
  SimFs& mount = host(i).mount();
  const std::vector<std::string> files = mount.Files("store/shards");
  if (files.empty()) return false;
  const std::string& path = files[prng.Below(files.size())];
  const std::string_view below = std::string_view(path).substr(sizeof("store/shards/") - 1);
  const auto digest = ParseShardDirName(below.substr(0, below.find('/')));
  if (!digest || !parts_.ledger->MayLoseCopy(i, *digest)) return false;
  const auto content = mount.Content(path);
  if (!content.ok() || content->empty()) return false;
  Status done;
  switch (prng.Below(4)) {
    case 0:
      done = mount.FlipByte(path, prng.Below(content->size()), 0x40);
      break;
    case 1:
      done = mount.Cut(path, prng.Below(content->size()));
      break;
    case 2:
      done = mount.Zero(path, 0, 1 + prng.Below(content->size()));
      break;
    default:
      done = mount.RemoveSilently(path);
      break;
  }
  if (!done.ok()) return false;
  parts_.world->Fault("damage at rest");
  parts_.world->Trace("n{} damaged: {}", i, path);
  parts_.ledger->OnDamage(i, *digest);
  return true;
}

// Nobody but its own job touches a copy that was handed out, and that one may do as it likes.
bool Nemesis::ChangeAt(size_t i) {
  if (!parts_.ledger->MayLose(i) || !parts_.job->ChangeRestored(i)) return false;
  parts_.ledger->OnLost();
  parts_.world->Fault("restored checkpoint changed");
  return true;
}

bool Nemesis::ChangeOne() {
  const size_t first = AnyHost();
  for (size_t n = 0; n < hosts(); ++n) {
    if (ChangeAt((first + n) % hosts())) return true;
  }
  return false;
}

void Nemesis::ChangeRestored() { (void)ChangeAt(AnyHost()); }

void Nemesis::OrderSkip() { parts_.people->SkipSomething(); }

// What somebody else's job left on a machine that this one is started on.
void Nemesis::LeaveForeignThings() {
  Prng& prng = parts_.world->prng();
  Dir& mount = host(AnyHost()).outside();
  if (!mount.Stat("client").ok()) return;
  parts_.job->Stop();
  const std::string step = std::to_string(kForeignStep + prng.Below(1000));
  switch (prng.Below(5)) {
    case 0:
      (void)mount.MakeSymlink("gone.data", "client/foreign-s" + step + "-n0-w0.restore");
      break;
    case 1:
      (void)mount.MakeDirs("client/" + step + ".orbax-checkpoint-tmp-0/items", 0755);
      break;
    case 2:
      if (auto file = mount.CreateFile("client/replicator.prerestore", 0644); file.ok()) {
        (void)(*file)->WriteAll(0, AsBytes(step));
      }
      break;
    case 3:
      (void)mount.MakeDirs("client/step=" + step + "-unfinished/array", 0700);
      break;
    default:
      if (auto file = mount.CreateFile("client/foreign-s" + step + "-n0-w0", 0644); file.ok()) {
        (void)(*file)->WriteAll(0, AsBytes("another job's"));
      }
      break;
  }
  parts_.world->Fault("foreign leftovers");
  parts_.job->StartLater(1ms);
}

void Nemesis::Damage() { (void)DamageShard(AnyHost()); }

void Nemesis::FillMount() {
  const size_t i = AnyHost();
  SimFs& mount = host(i).mount();
  parts_.world->Fault("mount full");
  parts_.ledger->BeginDisturbance();
  mount.set_bytes_max(mount.use().bytes + parts_.world->prng().Below(65'536));
  For(1s, 60s, [this, i] {
    parts_.ledger->EndDisturbance();
    host(i).mount().set_bytes_max(parts_.mount_bytes);
  });
}

void Nemesis::FileErrors() {
  parts_.world->Fault("file errors");
  parts_.ledger->BeginDisturbance();
  file_errors_ = true;
  // So that some agent looks at its whole store meanwhile.
  host(AnyHost()).KillAgent();
  const auto rate = static_cast<uint32_t>(1 + parts_.world->prng().Below(20'000));
  *parts_.file_rates = {rate, rate};
  For(1s, 30s, [this] {
    parts_.ledger->EndDisturbance();
    *parts_.file_rates = {};
  });
}

// ---- time --------------------------------------------------------------------------------------

void Nemesis::JumpWall() {
  parts_.world->Fault("wall clock jump");
  const Duration by = parts_.world->Between(1s, 26h);
  host(AnyHost()).clock().JumpWall(parts_.world->prng().Chance(1, 2) ? by : -by);
}

void Nemesis::SleepHost() {
  parts_.world->Fault("host suspended");
  host(AnyHost()).Sleep(parts_.world->Between(10ms, 120s));
}

void Nemesis::SlowHost() {
  parts_.world->Fault("slow host");
  const size_t i = AnyHost();
  const auto factor = static_cast<uint32_t>(2 + parts_.world->prng().Below(100));
  host(i).speed().slow = factor;
  parts_.network->set_slow(i, factor);
  For(1s, 90s, [this, i] {
    host(i).Disturb();
    host(i).speed().slow = 1;
    parts_.network->set_slow(i, 1);
  });
}

}  // namespace tierkeep::sim
