// `tierkeep doctor`: looks at all that an agent with these settings will need here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "agent/settings.h"
#include "io/frame_network.h"
#include "platform/doctor/finding.h"

namespace tierkeep::doctor {

struct Request {
  AgentSettings settings;
  std::vector<HostPort> peers;  // to be reached, besides those that the agent knows
  // The answer to GET /v1/status of the agent at settings.admin, if any answers.
  const Result<nlohmann::json>* status = nullptr;
};

// Blocking, a few seconds. Changes nothing that stays.
Findings Examine(const Request& request);

Verdict Worst(const Findings& findings);
// {"version": 1, "ok": …, "problems": n, "warnings": n, "findings": [{check, verdict, text,
// remedy}]}
nlohmann::json ReportJson(const Findings& findings);
// A line a finding, its remedy below, and a summary.
std::string ReportText(const Findings& findings);

}  // namespace tierkeep::doctor
