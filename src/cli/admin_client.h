// What the subcommands that ask a running agent share.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/result.h"
#include "base/time.h"

namespace tierkeep {

inline constexpr char kDefaultAdminSocket[] = "/run/tierkeep/agent.sock";

// One request; the answer must be status 200 and JSON.
Result<nlohmann::json> AskAgent(const std::string& socket, const std::string& method,
                                const std::string& path, Duration deadline,
                                const std::string& body = "");

}  // namespace tierkeep
