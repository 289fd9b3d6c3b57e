#include "sim/fates.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "format/store_names.h"
#include "tiers/ram/tree_walk.h"

namespace tierkeep::sim {
namespace {

constexpr Duration kLookEvery = 10s;
// While the job trains: for decisions that are told late, and for agents that are down.
constexpr Duration kGoneMax = 100s;

// How lines say that a save is given up.
constexpr std::string_view kGivenUp[] = {"is dropped", "can't be", "removed", "gives way"};
// What stands before its step.
constexpr std::string_view kBeforeStep[] = {"step ", "-s", "the save "};
constexpr std::string_view kStaged = "store/staged/";
// Nobody knows any more which steps they were.
constexpr std::string_view kGaveWay = "that the job doesn't go on from, give way";
// Whose they were is all that is said, and all of that job's may have gone.
constexpr std::string_view kThatJob = "that job ";
constexpr std::string_view kLeftGaveWay = " left give way";

std::set<Step> StepsIn(std::string_view text) {
  std::set<Step> steps;
  for (const std::string_view before : kBeforeStep) {
    for (size_t at = text.find(before); at != text.npos; at = text.find(before, at + 1)) {
      Step step = 0;
      const char* const from = text.data() + at + before.size();
      if (std::from_chars(from, text.data() + text.size(), step).ec == std::errc()) {
        steps.insert(step);
      }
    }
  }
  return steps;
}

}  // namespace

void Fates::Watch() {
  world_->After(kLookEvery, [this] {
    Look(kGoneMax);
    Watch();
  });
}

void Fates::OnSaved(size_t host, const std::string& name, const SaveId& id) {
  const auto stat = hosts_[host]->outside().Stat(JoinPath("client", name));
  if (!stat.ok()) return;
  saves_.push_back({host, name, stat->inode, id, job_->shape().name, world_->now()});
}

void Fates::OnRemoved(size_t host, const std::string& name) {
  const auto stat = hosts_[host]->outside().Stat(JoinPath("client", name));
  if (!stat.ok()) return;
  std::erase_if(saves_,
                [&](const Save& save) { return save.host == host && save.inode == stat->inode; });
}

void Fates::OnReleased() {
  NodeHost* node = hosts_[job_->placement()[0]]->node();
  if (node != nullptr) run_of_[job_->attempt()] = node->status().run.sequence;
}

void Fates::OnMove(size_t host, const FsOp& op) {
  NoteRun(host);
  const std::string to = JoinPath(op.base, op.to);
  if (!to.starts_with(kStaged) || !to.ends_with(kShardDataName)) return;
  const auto stat = hosts_[host]->outside().Stat(op.Path());
  const auto unit = ParseStagedName(to.substr(kStaged.size(), to.rfind('/') - kStaged.size()));
  if (!stat.ok() || !unit) return;
  for (Save& save : saves_) {
    if (save.host == host && save.inode == stat->inode) save.run = unit->save.run.sequence;
  }
}

void Fates::NoteRun(size_t host) {
  NodeHost* node = hosts_[host]->node();
  if (node == nullptr) return;
  const control::NodeState& state = node->machine().state();
  const uint64_t run = state.run().sequence();
  if (!state.released() || std::exchange(noted_[host], run) == run) return;
  const NodeStatus status = node->status();
  if (!status.config) return;
  uint64_t& newest = released_in_[status.config->job];
  newest = std::max(newest, run);
}

void Fates::OnLog(size_t host, std::string_view text) {
  if (text.find(kGaveWay) != text.npos) gave_way_[host] = world_->now();
  if (const size_t end = text.find(kLeftGaveWay), job = text.find(kThatJob);
      end != text.npos && job < end) {
    const size_t begin = job + kThatJob.size();
    others_gave_way_[{host, std::string(text.substr(begin, end - begin))}] = world_->now();
  }
  const bool given_up = std::any_of(std::begin(kGivenUp), std::end(kGivenUp),
                                    [&](auto part) { return text.find(part) != text.npos; });
  if (!given_up) return;
  for (const Step step : StepsIn(text)) told_.insert({step, job_->attempt()});
}

std::set<uint64_t> Fates::InodesAt(SimHost* host) const {
  std::set<uint64_t> inodes;
  Dir& dir = host->outside();
  const auto add = [&](const std::string& path) {
    if (const auto stat = dir.Stat(path); stat.ok()) inodes.insert(stat->inode);
  };
  for (const DirEntry& entry : host->Entries("client")) add(JoinPath("client", entry.name));
  for (const std::string_view part : {kStagedDir, kShardsDir}) {
    for (const DirEntry& entry : host->Entries(JoinPath("store", part))) {
      add(JoinPath(JoinPath(JoinPath("store", part), entry.name), kShardDataName));
    }
  }
  return inodes;
}

// Some node was released in a later run of the job: the decision has passed it over. However short
// that run was, and whether or not the save's node had a rank in it; of another job's nothing
// follows, whose sequences are of another order.
bool Fates::IsRestoredPast(const Save& save) const {
  const auto released = released_in_.find(save.job);
  if (released == released_in_.end()) return false;
  if (save.run) return released->second > *save.run;
  const auto run = run_of_.find(save.id.attempt);
  return run != run_of_.end() && released->second > run->second;
}

std::string Fates::FateOf(const Save& save) const {
  if (hosts_[save.host]->lost_at() >= save.since) return "lost with their machines";
  if (ledger_->IsPast(save.job, save.id)) return "committed or overtaken";
  if (ledger_->DamagedSince(save.host, save.since)) return "lost by damage";
  const auto told = told_.lower_bound({save.id.step, save.id.attempt});
  if (told != told_.end() && told->first == save.id.step) return "given up, as was told";
  const auto gave_way = gave_way_.find(save.host);
  if (gave_way != gave_way_.end() && gave_way->second >= save.since) return "given up, as was told";
  const auto others = others_gave_way_.find({save.host, save.job});
  if (others != others_gave_way_.end() && others->second >= save.since) {
    return "given up, as was told";
  }
  if (IsRestoredPast(save)) return "passed over by a restore";
  return "";
}

void Fates::Look(Duration gone_max) {
  if (world_->failed()) return;
  if (!job_->training()) started_at_ = world_->now();
  std::map<size_t, std::set<uint64_t>> inodes;
  std::erase_if(saves_, [&](Save& save) {
    const auto [at, added] = inodes.try_emplace(save.host);
    if (added) at->second = InodesAt(hosts_[save.host].get());
    if (at->second.contains(save.inode) && hosts_[save.host]->lost_at() < save.since) return false;
    const std::string fate = FateOf(save);
    if (!fate.empty()) {
      world_->Count("saves " + fate);
      return true;
    }
    if (!save.gone) save.gone = world_->now();
    if (world_->now() - std::max(*save.gone, started_at_) < gone_max) return false;
    world_->Fail(Checker::kSaveVanished,
                 fmt::format("n{}: the finished save {} of {} is gone, and nobody says why",
                             save.host, save.id.ToString(), save.job));
    return true;
  });
}

void Fates::CheckAll() { Look(Duration{}); }

}  // namespace tierkeep::sim
