// Whether the RAM volume is still where others see it.
//
// An unmounted volume (`umount -l`), or one that another was mounted over, goes on working for
// whoever has it open: files can be written, read and verified, and no watch tells. Only its path
// shows it. So that is looked at right before each message, since any may rest on a copy that is
// staged, verified or recorded, and every so often. Everything in the volume is reached from the
// directory that was opened at the start: whatever is at the path now is not touched.
#include "agent/node_host.h"
#include "base/mutation.h"

namespace tierkeep {
namespace {

constexpr Loop::TimerKey kLookTimer{UINT64_MAX, 1};  // neither the machine's nor a coordinator's

}  // namespace

void NodeHost::LookEverySoOften() {
  if (!VolumeStands()) {
    TK_PROBE(kVolumeVanished);
    return;
  }
  loop_->SetTimer(kLookTimer, parts_.clock->Now() + kLookEvery, [this] { LookEverySoOften(); });
}

bool NodeHost::VolumeStands() {
  if (TK_MUTATION(kIgnoreVanishedVolume)) return true;
  if (volume_lost_) return false;
  const Status there = CheckStands(parts_.store->mount());
  if (there.ok()) return true;
  GiveUpVolume(there);
  return false;
}

void NodeHost::GiveUpVolume(const Status& why) {
  volume_lost_ = true;
  {
    const std::lock_guard lock(mutex_);
    for (auto& [id, task] : tasks_) task.cancelled->store(true);
  }
  size_t staged = 0;
  if (const auto names = parts_.store->Staged(); names.ok()) staged = names->size();
  parts_.logger.Error(
      "the RAM volume of node {} has vanished under its agent: {}. {} copies ({}) and {} saves "
      "being hashed are lost with it, as in a power cut. What is there now is not touched; the "
      "state directory stays. The agent ends with status 1: started again it gets its copies from "
      "its peers",
      options_.node_name, why.error().message(), parts_.store->Shards().size(),
      FormatBytes(parts_.store->held_bytes()), staged);
  if (parts_.on_volume_lost) parts_.on_volume_lost(why);
}

}  // namespace tierkeep
