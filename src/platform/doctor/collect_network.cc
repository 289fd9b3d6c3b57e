// Beyond the machine: ports, other agents, the rendezvous.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <utility>

#include "format/messages.h"
#include "format/volume_names.h"
#include "io/rendezvous.h"
#include "io/stream.h"
#include "platform/doctor/collect.h"

namespace tierkeep::doctor {
namespace {

constexpr Duration kConnectDeadline = 3s;
// After the handshake a peer that refuses our certificate says so within this time.
constexpr Duration kRefusalWait = 500ms;
constexpr size_t kRecordsMax = 16;

Status Reach(const HostPort& at, const std::shared_ptr<TlsContext>& tls) {
  StreamOptions options;
  options.tls = tls;
  options.connect_deadline = kConnectDeadline;
  options.stall_limit = kRefusalWait;
  options.socket_buffer_bytes = 1 << 16;
  TK_ASSIGN_OR_RETURN(const auto stream, ConnectStream(at, options));
  if (!tls) return OkStatus();
  std::byte byte;
  const Status refused = stream->ReadExactly({&byte, 1});
  // Silence is consent: it waits for us to speak.
  if (!refused.ok() && refused.error().code() == Code::kUnauthenticated) return refused;
  return OkStatus();
}

// When the newest record of the job was written, by the file system's clock.
std::optional<int64_t> WrittenAt(Dir& dir, const std::string& job) {
  const auto entries = dir.List(job);
  if (!entries.ok()) return std::nullopt;
  for (auto entry = entries->rbegin(); entry != entries->rend(); ++entry) {
    if (!entry->name.ends_with(".record")) continue;
    const auto stat = dir.Stat(job + "/" + entry->name);
    return stat.ok() ? std::optional(stat->change_time_ns) : std::nullopt;
  }
  return std::nullopt;
}

// Writes, links and removes a file as a coordinator does with its record. `made_at`: when, by the
// file system's clock.
Status ProbeDirectory(Dir& dir, RandomSource* random, int64_t* made_at) {
  uint64_t number = 0;
  random->Fill(&number, sizeof(number));
  const std::string name = fmt::format(".tierkeep-doctor-{:016x}", number);
  const std::string linked = name + "-2";
  const auto probe = [&]() -> Status {
    TK_ASSIGN_OR_RETURN(const auto file, dir.CreateFile(name, 0644));
    TK_RETURN_IF_ERROR(file->WriteAll(0, AsBytes("tierkeep doctor\n")));
    TK_RETURN_IF_ERROR(file->Sync());
    TK_ASSIGN_OR_RETURN(const FileStat stat, file->Stat());
    *made_at = stat.change_time_ns;
    return dir.HardLink(name, linked);
  };
  const Status tried = probe();
  for (const std::string& path : {linked, name}) {
    const Status removed = dir.Unlink(path);
    if (tried.ok() && !removed.ok()) return removed;
  }
  return tried;
}

RendezvousFacts::Record ReadRecord(Rendezvous& rendezvous, const std::string& job) {
  RendezvousFacts::Record record;
  record.job = job;
  const auto decode = [&]() -> Status {
    TK_ASSIGN_OR_RETURN(const auto read, rendezvous.Read(job));
    if (!read) return Error(Code::kNotFound, "there is none");
    TK_ASSIGN_OR_RETURN(const control::RendezvousRecord found, DecodeRendezvousRecord(read->bytes));
    record.epoch = found.epoch();
    record.node = found.node();
    record.coordinator = {found.coordinator().host(),
                          static_cast<uint16_t>(found.coordinator().port())};
    return OkStatus();
  };
  record.read = decode();
  return record;
}

void CollectRecords(Dir& dir, const std::string& path, const AgentFacts& agent,
                    const std::shared_ptr<TlsContext>& tls, WallTime now, RendezvousFacts& facts) {
  const auto entries = dir.List("");
  if (!entries.ok()) {
    facts.usable = entries.error();
    return;
  }
  const auto rendezvous = OpenFileRendezvous(path);
  if (!rendezvous.ok()) {
    facts.usable = rendezvous.error();
    return;
  }
  std::vector<std::string> jobs;
  for (const DirEntry& entry : *entries) {
    if (entry.type == FileType::kDirectory && IsValidJobName(entry.name))
      jobs.push_back(entry.name);
  }
  // Ours first, should there be more than can be shown.
  std::stable_partition(jobs.begin(), jobs.end(),
                        [&](const std::string& job) { return job == agent.job; });
  if (jobs.size() > kRecordsMax) jobs.resize(kRecordsMax);
  std::vector<size_t> asked;
  std::vector<HostPort> addresses;
  for (const std::string& job : jobs) {
    RendezvousFacts::Record record = ReadRecord(**rendezvous, job);
    if (!record.read.ok() && record.read.error().code() == Code::kNotFound) continue;
    if (const auto written = WrittenAt(dir, job)) {
      const Duration ahead = facts.clock_ahead.value_or(Duration(0));
      record.age = std::max(Duration(0), now.time_since_epoch() + ahead - Duration(*written));
    }
    const bool own = agent.running && record.node == agent.node;
    if (record.read.ok() && !own) {
      asked.push_back(facts.records.size());
      addresses.push_back(record.coordinator);
    }
    facts.records.push_back(std::move(record));
  }
  const auto reached = ReachAll(addresses, tls);
  for (size_t i = 0; i < asked.size(); ++i) facts.records[asked[i]].reached = reached[i];
}

}  // namespace

PortFacts CollectPort(const std::string& name, const HostPort& at, uint16_t of_agent) {
  PortFacts facts;
  facts.name = name;
  facts.at = at;
  if (at.port == 0) {
    facts.state = PortFacts::State::kAnyFree;
    return facts;
  }
  StreamOptions options;
  options.socket_buffer_bytes = 1 << 16;
  const auto listener = ListenStreams(at.host, at.port, options);
  if (listener.ok()) return facts;
  facts.error = listener.error();
  if (listener.error().errno_value() != EADDRINUSE) {
    facts.state = PortFacts::State::kError;
  } else {
    facts.state = at.port == of_agent ? PortFacts::State::kOurs : PortFacts::State::kTaken;
  }
  return facts;
}

std::vector<Status> ReachAll(const std::vector<HostPort>& addresses,
                             const std::shared_ptr<TlsContext>& tls) {
  std::vector<std::future<Status>> tries;
  for (const HostPort& at : addresses) {
    tries.push_back(std::async(std::launch::async, [&at, &tls] { return Reach(at, tls); }));
  }
  std::vector<Status> out;
  for (auto& one : tries) out.push_back(one.get());
  return out;
}

RendezvousFacts CollectRendezvous(const AgentSettings& settings, const AgentFacts& agent,
                                  const std::shared_ptr<TlsContext>& tls, Clock* clock,
                                  RandomSource* random) {
  RendezvousFacts facts;
  const auto address = ParseRendezvous(settings.rendezvous);
  if (!address.ok()) {  // settings were checked before
    facts.usable = address.error();
    return facts;
  }
  facts.address = *address;
  if (address->kind == RendezvousAddress::Kind::kStatic) {
    facts.ours = address->host == settings.advertise && address->port == settings.control_port;
    if (!facts.ours) facts.usable = ReachAll({{address->host, address->port}}, tls).front();
    return facts;
  }
  auto dir = OpenPosixDir(address->dir);
  if (!dir.ok()) {
    facts.usable = dir.error().With("rendezvous");
    return facts;
  }
  const WallTime before = clock->WallNow();
  int64_t made_at = 0;
  facts.usable = ProbeDirectory(**dir, random, &made_at);
  if (!facts.usable.ok()) return facts;
  // The call took some time, too: by that much nobody's clock is wrong.
  const WallTime after = clock->WallNow();
  const WallTime made(Duration{made_at});
  facts.clock_ahead = made < before ? made - before : made > after ? made - after : Duration(0);
  CollectRecords(**dir, address->dir, agent, tls, after, facts);
  return facts;
}

}  // namespace tierkeep::doctor
