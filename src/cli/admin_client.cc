#include "cli/admin_client.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "io/http.h"

namespace tierkeep {

Result<nlohmann::json> AskAgent(const std::string& socket, const std::string& method,
                                const std::string& path, Duration deadline,
                                const std::string& body) {
  auto answer = HttpOverUnix(socket, method, path, body, deadline);
  if (!answer.ok()) {
    return answer.error().With(
        fmt::format("no agent answers at {} (--admin names its socket)", socket));
  }
  auto json = nlohmann::json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error(Code::kInternal, "the agent's answer isn't JSON");
  if (answer->status != 200) {
    return Error(Code::kUnknown, json.value("error", fmt::format("status {}", answer->status)));
  }
  return json;
}

}  // namespace tierkeep
