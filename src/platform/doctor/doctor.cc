#include "platform/doctor/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "io/clock.h"
#include "io/tls.h"
#include "platform/doctor/checks.h"
#include "platform/doctor/collect.h"

namespace tierkeep::doctor {
namespace {

constexpr size_t kMembersTriedMax = 32;

void Add(Findings more, Findings& out) {
  std::move(more.begin(), more.end(), std::back_inserter(out));
}

std::string_view VerdictName(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
      return "problem";
  }
  return "";
}

// "HOST:PORT" of --metrics; its form was checked by whoever starts the agent.
HostPort MetricsAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return {text, 0};
  return {text.substr(0, colon),
          static_cast<uint16_t>(std::strtoul(text.c_str() + colon + 1, nullptr, 10))};
}

void CheckPorts(const AgentSettings& settings, const AgentFacts& agent, Findings& out) {
  Add(CheckPort(CollectPort("control-port", {settings.listen, settings.control_port},
                            agent.control_port)),
      out);
  Add(CheckPort(CollectPort("data-port", {settings.listen, settings.data_port}, agent.data_port)),
      out);
  if (settings.metrics.empty()) return;
  const HostPort metrics = MetricsAddress(settings.metrics);
  // Which port a running agent serves them on isn't in its status: with the same settings, this.
  Add(CheckPort(CollectPort("metrics", metrics, agent.running ? metrics.port : 0)), out);
}

void CheckPeers(const Request& request, const AgentFacts& agent,
                const std::shared_ptr<TlsContext>& tls, Findings& out) {
  std::vector<PeerFacts> peers;
  std::vector<HostPort> given;
  for (const HostPort& at : request.peers) peers.push_back({at, "the given peer", OkStatus()});
  // A given address may be of either port; members' are data ports, which may do without TLS.
  const auto reach = [&](size_t from, const std::shared_ptr<TlsContext>& with) {
    std::vector<HostPort> addresses;
    for (size_t i = from; i < peers.size(); ++i) addresses.push_back(peers[i].at);
    const auto reached = ReachAll(addresses, with);
    for (size_t i = from; i < peers.size(); ++i) peers[i].reached = reached[i - from];
  };
  reach(0, tls);
  const size_t members = peers.size();
  for (const AgentFacts::Member& member : agent.members) {
    if (member.node == agent.node || peers.size() - members >= kMembersTriedMax) continue;
    peers.push_back({member.data, "node " + member.node, OkStatus()});
  }
  reach(members, request.settings.data_encryption ? tls : nullptr);
  for (const PeerFacts& peer : peers) Add(CheckPeer(peer), out);
  if (peers.empty()) {
    out.push_back({"peers", Verdict::kOk, "none known: --peer HOST:PORT tries one", ""});
  }
}

}  // namespace

Findings Examine(const Request& request) {
  const AgentSettings& settings = request.settings;
  const SystemPaths paths;
  SystemClock clock;
  SystemRandom random;
  Findings out;
  const AgentFacts agent = ReadAgent(*request.status, settings.admin);
  Add(CheckAgent(agent), out);

  const MountFacts mount = CollectMount(settings.mount, paths, &random);
  Add(CheckMount(mount), out);
  Add(CheckMemory(CollectMemory(agent.pid, paths), mount), out);
  Add(CheckSizing(agent), out);
  Add(CheckHugePages(CollectHugePages(paths), mount), out);
  Add(CheckLimits(CollectLimits(agent.pid, settings.mount + "/client", paths)), out);
  Add(CheckStateDir(CollectStateDir(settings.state_dir, paths, &random)), out);

  TlsFacts tls;
  tls.dir = settings.tls_dir;
  tls.loopback_only = IsLoopbackHost(settings.advertise) && IsLoopbackHost(settings.listen);
  tls.data_encryption = settings.data_encryption;
  std::shared_ptr<TlsContext> context;
  if (settings.uses_tls()) {
    tls.files = InspectTlsFiles(settings.tls_dir, clock.WallNow());
    if (auto loaded = TlsContext::Load(settings.tls_dir); loaded.ok()) context = *loaded;
  }
  Add(CheckTls(tls, clock.WallNow()), out);

  CheckPorts(settings, agent, out);
  if (!settings.uses_tls() || context) {
    CheckPeers(request, agent, context, out);
  } else {
    out.push_back({"peers", Verdict::kWarning, "not tried: the TLS files can't be used",
                   "repair the TLS files, then look again"});
  }
  const RendezvousFacts rendezvous = CollectRendezvous(settings, agent, context, &clock, &random);
  Add(CheckRendezvous(rendezvous, agent), out);
  Add(CheckClocks(rendezvous, agent), out);
  Add(CheckBucket(), out);
  return out;
}

Verdict Worst(const Findings& findings) {
  Verdict worst = Verdict::kOk;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst;
}

nlohmann::json ReportJson(const Findings& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"verdict", VerdictName(finding.verdict)},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  const auto count = [&](Verdict verdict) {
    return std::count_if(findings.begin(), findings.end(),
                         [&](const Finding& f) { return f.verdict == verdict; });
  };
  return {{"version", 1},
          {"ok", Worst(findings) != Verdict::kProblem},
          {"problems", count(Verdict::kProblem)},
          {"warnings", count(Verdict::kWarning)},
          {"findings", std::move(list)}};
}

std::string ReportText(const Findings& findings) {
  std::string out;
  size_t problems = 0;
  size_t warnings = 0;
  for (const Finding& finding : findings) {
    problems += finding.verdict == Verdict::kProblem ? 1 : 0;
    warnings += finding.verdict == Verdict::kWarning ? 1 : 0;
    out += fmt::format("{:<8} {:<12} {}\n", VerdictName(finding.verdict), finding.check,
                       EscapeForLog(finding.text, 2048));
    if (!finding.remedy.empty()) {
      out += fmt::format("{:<8} {:<12} -> {}\n", "", "", EscapeForLog(finding.remedy, 2048));
    }
  }
  return out + fmt::format("{} looked at, {} warnings, {} problems\n", findings.size(), warnings,
                           problems);
}

}  // namespace tierkeep::doctor
