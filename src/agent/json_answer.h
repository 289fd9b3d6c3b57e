// Answers of the admin API.
#pragma once

#include <nlohmann/json.hpp>

#include "io/http.h"

namespace tierkeep {

inline HttpResponse JsonAnswer(const nlohmann::json& body, int status = 200) {
  // Names may hold any bytes; what isn't UTF-8 is replaced, never an exception.
  return {status, "application/json",
          body.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"};
}

inline HttpResponse NoSuchResource(const HttpRequest& request) {
  return JsonAnswer({{"error", "no such resource: " + request.method + " " + request.path}}, 404);
}

}  // namespace tierkeep
