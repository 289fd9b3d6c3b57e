// The job's side of the protocol: what the agent reads from and writes into <mount>/client.
// Every write is O_EXCL, no-follow, through a random temporary name and a rename; whatever stands
// at a target name (a planted link, a directory) is removed, never written through.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/result.h"
#include "format/ids.h"
#include "format/volume_names.h"
#include "tiers/ram/store.h"

namespace tierkeep {

// Tells one replicator.yaml from the next: the same file is the same attempt.
struct ConfigFile {
  std::string text;
  std::string id;  // inode, ctime and digest
};

// What counts as a save. Directories of Orbax: with commit_success.txt, which it writes last, also
// when it makes them in place; without it nobody can tell a save from what a dead job was still
// making. (Orbax before 0.12.3 doesn't write it: its saves count when they are seen to be moved
// in.) Directories of pytorch.distributed: all, since its only way is a rename.
enum class SaveScan : uint8_t {
  // While the job runs: no file that somebody still has open for writing, whose end a watch tells;
  // directories of Orbax that are no save yet, since such a watch has to be begun.
  kRunning,
  // Who made them is of the past: those files, since he is waited for, and no such directories.
  kAtStart,
};

// A save that stands in the volume.
struct FoundSave {
  std::string name;  // entry name in the volume
  Step step = 0;
  Worker worker = 0;
  Rank rank = 0;         // framework pytorch only: what the name says
  bool finished = true;  // else it doesn't count yet, and may never
};

// Threads: any, on the same object.
class Volume {
 public:
  Volume(Store* store, Logger logger);

  // nullopt: none there. An empty file has empty text. A link, pipe or too large file is
  // kInvalidArgument and is removed by the caller through RemoveConfig. kAborted: somebody has it
  // open for writing, so that what stands in it may only be its beginning.
  Result<std::optional<ConfigFile>> ReadConfig();
  // Only if it is still the file with this id (empty id: whatever is there). None there, or another
  // one: nothing is done, and that is success.
  Status RemoveConfig(std::string_view id);

  // Saves now in the volume, by (step, name); never links. Frameworks orbax and
  // pytorch.distributed: directories named by digits; framework pytorch: J-sS-nR-wW.save files.
  Result<std::vector<FoundSave>> ListSaves(Framework framework, std::string_view job,
                                           SaveScan scan = SaveScan::kRunning);
  // Start-up cleaning: removes every entry but replicator.yaml, jax-init-info.txt and the H.data
  // trees in `keep_data` (names H). Saves are expected to have been taken before; one that goes is
  // named in the log.
  Status Clean(const std::vector<std::string>& keep_data);

  Status WritePrerestore(std::optional<Step> step, std::string_view backup);
  // The relative link J-sS-nR-wW.restore → H.data; its data must be there.
  Status PlaceRestoreLink(const WorkerName& name, std::string_view h);
  // Whether that link stands, or stands where clients put it when they take it: `S` or `step=S`.
  bool RestoreLinkStands(const WorkerName& name, std::string_view h);
  // The zero-length J-s0-nR-wW.restore.
  Status PlaceNoCheckpointMarker(const WorkerName& name);
  // J-sS-nR-wW.meta with content H; and its removal with those of other steps.
  Status WriteMeta(const WorkerName& name, std::string_view h);
  // Removes every *.meta but `keep`.
  Status RemoveOtherMetas(const std::vector<WorkerName>& keep);
  // Appends to replicator.errors (creating it), or to both for a fatal one. Beyond 64 KiB the
  // oldest lines go. Works with a full volume, from a file that was made before, and with a store
  // that can't be written.
  Status AppendError(std::string_view line);
  Status AppendFailed(std::string_view line);
  // Keeps pages that are given back where a full volume would keep the job's next start from
  // beginning: nobody else can make the room that its replicator.yaml needs. Nothing is done while
  // there is none beside it. Threads: one at a time.
  void KeepReserve();
  // Whether there was any.
  bool GiveUpReserve();
  // Gives it up if too little is free for what a start writes.
  void MakeRoomForStart();
  // nullopt: none there, or nothing that a platform would write (a link, over 4 KiB).
  std::optional<std::string> ReadJaxInit();

 private:
  Status Put(std::string_view name, std::string_view content);
  Status PutByRename(const std::string& temporary, std::string_view name);
  Status Append(std::string_view name, std::string_view line);
  void MakeSpare();
  Status PutSpare(std::string_view name, std::string_view content);

  Store* store_;
  Logger logger_;
  std::mutex append_mutex_;  // reading, adding and replacing are one step among our own threads
  bool spare_ = false;       // store/spare has its pages
  bool reserve_ = false;     // and store/reserve
};

}  // namespace tierkeep
