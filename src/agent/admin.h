// The admin API: the same handlers behind the Unix socket and, reading only, the metrics port.
//
//   GET  /v1/status    status_json.h
//   POST /v1/verify    re-reads every copy; one object a shard
//   POST /v1/restore/  restore_api.h
//   GET  /metrics      text exposition
//   GET  /healthz      "ok" while the loop answers
#pragma once

#include <functional>
#include <string>

#include "agent/metrics.h"
#include "agent/status_json.h"
#include "io/http.h"
#include "tiers/ram/store.h"

namespace tierkeep {

struct AdminSources {
  std::function<StatusInputs()> snapshot;  // any thread
  std::function<std::string(const MetricsSnapshot&)> metrics;
  Store* store = nullptr;
  HttpHandler restore;  // of MakeRestoreHandler
};

HttpHandler MakeAdminHandler(AdminSources sources);
// Refuses all but GET.
HttpHandler ReadOnly(HttpHandler handler);

}  // namespace tierkeep
