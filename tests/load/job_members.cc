// job_members: all members of a job but rank 0, each on a control connection of its own to the real
// agent that coordinates them. Reads one command a line:
//
//   join         a new start of the job on every member; done when all are released
//   save STEP    every member has saved; done when all have recorded the commit
//
// and answers each with one line of JSON: seconds since the command by event (when the last member
// had it), messages and bytes both ways, connections lost. Ends with its input, or with status 1
// and one line on standard error where a member was refused or a command takes too long.

#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <condition_variable>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "format/messages.h"
#include "io/clock.h"
#include "io/frame_network.h"
#include "member.h"

namespace tierkeep {
namespace {

using nlohmann::json;

class Members : public FrameHandler {
 public:
  Members(const std::string& job, Rank last, HostPort coordinator)
      : coordinator_(std::move(coordinator)) {
    for (Rank rank = 1; rank <= last; ++rank) {
      members_.emplace_back(job, rank, last + 1, rank < last ? rank + 1 : 1);
    }
    connections_.resize(members_.size());
    join_frames_.resize(members_.size());
  }

  Status Start(const std::string& tls_dir) {
    FrameNetworkOptions options;
    options.listen_host = "127.0.0.1";
    options.connections_max = static_cast<uint32_t>(members_.size()) * 2;
    options.connect_deadline = 60s;
    if (!tls_dir.empty()) {
      TK_ASSIGN_OR_RETURN(options.tls, TlsContext::Load(tls_dir));
    }
    TK_ASSIGN_OR_RETURN(network_, StartFrameNetwork(options, this));
    return OkStatus();
  }

  Result<json> Join(Duration limit) {
    std::unique_lock lock(mutex_);
    Begin();
    for (auto& [connection, index] : indexes_) network_->Close(connection);
    indexes_.clear();
    for (size_t i = 0; i < members_.size(); ++i) {
      join_frames_[i] = Encoded(members_[i].Join());
      Connect(i);
    }
    TK_RETURN_IF_ERROR(Wait(&lock, limit, [](const Member& m) { return m.released(); }));
    json out = Report();
    out["restored"] = members_[0].restored();
    return out;
  }

  Result<json> Save(Step step, Duration limit) {
    std::unique_lock lock(mutex_);
    Begin();
    for (size_t i = 0; i < members_.size(); ++i) {
      Send(connections_[i], Encoded(members_[i].Save(step)));
    }
    TK_RETURN_IF_ERROR(
        Wait(&lock, limit, [step](const Member& m) { return m.committed() == step; }));
    return Report();
  }

 private:
  void OnAccepted(ConnectionId connection, const HostPort&) override {
    network_->Close(connection);
  }

  void OnConnected(ConnectionId) override {
    const std::lock_guard lock(mutex_);
    if (++connected_ == members_.size()) Note("connected");
  }

  void OnFrame(ConnectionId connection, std::string frame) override {
    const auto message = DecodeEnvelope(frame);
    const std::lock_guard lock(mutex_);
    const auto it = indexes_.find(connection);
    if (it == indexes_.end()) return;  // of the run before
    ++messages_in_;
    bytes_in_ += frame.size();
    if (!message.ok()) return Fail(message.error());
    Member& member = members_[it->second];
    auto answer = member.Hear(*message);
    if (!answer.ok()) return Fail(answer.error());
    if (message->has_run_start() && ++entered_ == members_.size()) Note("run_started");
    if (message->has_restore() && ++decided_ == members_.size()) Note("decided");
    if (*answer) Send(connection, Encoded(std::move(**answer)));
    if (message->has_release() || message->has_commit()) {
      ++done_;
      changed_.notify_one();
    }
  }

  void OnClosed(ConnectionId connection, const Error& why) override {
    const std::lock_guard lock(mutex_);
    const auto it = indexes_.find(connection);
    if (it == indexes_.end() || why.code() == Code::kCancelled) return;
    const size_t index = it->second;
    indexes_.erase(it);
    if (members_[index].entered()) return Fail(why.With("a member's connection was lost"));
    ++lost_;
    Connect(index);  // as an agent would
  }

  // The rest with mutex_ held.

  void Connect(size_t index) {
    connections_[index] = network_->Connect(coordinator_);
    indexes_[connections_[index]] = index;
    Send(connections_[index], join_frames_[index]);
  }

  std::string Encoded(control::Envelope message) {
    auto bytes = EncodeEnvelope(std::move(message));
    if (!bytes.ok()) Fail(bytes.error());
    return bytes.ok() ? std::move(*bytes) : std::string();
  }

  void Send(ConnectionId connection, std::string bytes) {
    ++messages_out_;
    bytes_out_ += bytes.size();
    network_->Send(connection, std::move(bytes));
  }

  void Fail(const Error& why) {
    if (failed_.ok()) failed_ = why;
    changed_.notify_one();
  }

  void Note(const char* what) { seconds_[what] = ToSeconds(clock_.Now() - begun_); }

  void Begin() {
    begun_ = clock_.Now();
    seconds_ = json::object();
    connected_ = entered_ = decided_ = done_ = 0;
    messages_in_ = messages_out_ = bytes_in_ = bytes_out_ = lost_ = 0;
  }

  Status Wait(std::unique_lock<std::mutex>* lock, Duration limit,
              const std::function<bool(const Member&)>& is_done) {
    const auto all = [&] {
      return !failed_.ok() ||
             (done_ >= members_.size() && std::all_of(members_.begin(), members_.end(), is_done));
    };
    const bool in_time = changed_.wait_for(*lock, std::chrono::nanoseconds(limit), all);
    if (!failed_.ok()) return failed_;
    if (!in_time) {
      const auto done = std::count_if(members_.begin(), members_.end(), is_done);
      return Error(Code::kDeadlineExceeded,
                   fmt::format("{} of {} members had done it after {}", done, members_.size(),
                               FormatDuration(limit)));
    }
    Note("done");
    return OkStatus();
  }

  json Report() const {
    return {{"members", members_.size()},    {"seconds", seconds_},   {"messages_in", messages_in_},
            {"messages_out", messages_out_}, {"bytes_in", bytes_in_}, {"bytes_out", bytes_out_},
            {"connections_lost", lost_}};
  }

  const HostPort coordinator_;
  SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  std::vector<ConnectionId> connections_;  // by member
  std::map<ConnectionId, size_t> indexes_;
  std::vector<std::string> join_frames_;  // by member
  Status failed_;
  Instant begun_{};
  json seconds_;
  size_t connected_ = 0, entered_ = 0, decided_ = 0, done_ = 0;
  uint64_t messages_in_ = 0, messages_out_ = 0, bytes_in_ = 0, bytes_out_ = 0, lost_ = 0;
  std::unique_ptr<FrameNetwork> network_;  // last: it calls all the above
};

Status Obey(Members* members, Duration limit) {
  std::string command;
  while (std::cin >> command) {
    Step step = 0;
    if (command == "save") std::cin >> step;
    if (command != "join" && command != "save") {
      return Error(Code::kInvalidArgument, "no command: " + command);
    }
    auto done = command == "join" ? members->Join(limit) : members->Save(step, limit);
    if (!done.ok()) return done.error().With(command);
    (*done)["command"] = command;
    std::cout << *done << std::endl;
  }
  return OkStatus();
}

}  // namespace
}  // namespace tierkeep

int main(int argc, char** argv) {
  CLI::App app{"All members of a job but rank 0, on real connections"};
  std::string job, host = "127.0.0.1", tls_dir;
  uint16_t port = 0;
  uint32_t nodes = 0;
  int limit_seconds = 120;
  app.add_option("--job", job)->required();
  app.add_option("--host", host, "the coordinator's");
  app.add_option("--port", port, "the coordinator's control port")->required();
  app.add_option("--nodes", nodes, "ranks in all, at least 3")->required();
  app.add_option("--tls-dir", tls_dir);
  app.add_option("--limit-seconds", limit_seconds, "for one command");
  CLI11_PARSE(app, argc, argv);
  struct rlimit files {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  tierkeep::Members members(job, nodes - 1, {host, port});
  auto status = members.Start(tls_dir);
  if (status.ok()) status = tierkeep::Obey(&members, std::chrono::seconds(limit_seconds));
  if (!status.ok()) std::cerr << "job_members: " << status.error().ToString() << "\n";
  return status.ok() ? 0 : 1;
}
