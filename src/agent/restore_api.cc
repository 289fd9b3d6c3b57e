#include "agent/restore_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "agent/json_answer.h"
#include "agent/restore_to.h"
#include "format/decimal.h"
#include "format/messages.h"
#include "format/restore_orders.h"

namespace tierkeep {
namespace {

using nlohmann::json;

HttpResponse Refuse(const Error& error) {
  const int status = error.code() == Code::kInvalidArgument ? 400 : 409;
  return JsonAnswer({{"error", error.message()}}, status);
}

Error BadRequest(std::string_view what) {
  return Error(Code::kInvalidArgument, "the request is malformed: " + std::string(what));
}

// Fields of a request; every one is checked, and none that isn't known is passed over.
struct Request {
  std::string job;
  std::vector<std::string> without;
  bool without_absent = false;
  std::vector<std::string> skip;
  RestoreToRequest to;
};

Result<std::vector<std::string>> Texts(const json& value, std::string_view name) {
  std::vector<std::string> out;
  if (!value.is_array()) return BadRequest(fmt::format("{} must be a list", name));
  for (const json& one : value) {
    if (!one.is_string()) return BadRequest(fmt::format("{} must be a list of texts", name));
    out.push_back(one.get<std::string>());
  }
  return out;
}

Status ReadField(const std::string& name, const json& value, Request* out) {
  if (name == "job" && value.is_string()) {
    out->job = value.get<std::string>();
  } else if (name == "without") {
    TK_ASSIGN_OR_RETURN(out->without, Texts(value, name));
  } else if (name == "skip") {
    TK_ASSIGN_OR_RETURN(out->skip, Texts(value, name));
  } else if (name == "without_absent" && value.is_boolean()) {
    out->without_absent = value.get<bool>();
  } else if (name == "to" && value.is_string()) {
    out->to.dir = value.get<std::string>();
  } else if (name == "step" && value.is_number_unsigned()) {
    out->to.step = value.get<uint64_t>();
  } else if (name == "generation" && value.is_string()) {
    out->to.generation = ParseNumberedSave(value.get<std::string>());
    if (!out->to.generation) return BadRequest("generation must be RUN/SAVE, as status shows them");
  } else if (name == "all" && value.is_boolean()) {
    out->to.all = value.get<bool>();
  } else if (name == "ranks" && value.is_array()) {
    for (const json& rank : value) {
      if (!rank.is_number_unsigned() || rank.get<uint64_t>() >= kNodesMax) {
        return BadRequest("ranks must be a list of ranks");
      }
      out->to.ranks.push_back(rank.get<Rank>());
    }
  } else {
    return BadRequest("field " + EscapeForLog(name, 64));
  }
  return OkStatus();
}

Result<Request> ReadRequest(const std::string& body) {
  const json parsed = json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return BadRequest("it is no JSON object");
  Request out;
  for (const auto& [name, value] : parsed.items()) {
    TK_RETURN_IF_ERROR(ReadField(name, value, &out));
  }
  return out;
}

// Of the request, or the one that this agent has to do with.
Result<std::string> JobOf(const Request& request, const StatusInputs& in) {
  if (!request.job.empty()) {
    if (IsValidJobName(request.job)) return request.job;
    return Error(Code::kInvalidArgument,
                 fmt::format("\"{}\" is no job's name", EscapeForLog(request.job, 64)));
  }
  if (in.node.config) return in.node.config->job;
  if (in.node.stop) return in.node.stop->job();
  return Error(Code::kInvalidArgument, "this agent serves no job now: name one with --job");
}

// What the last decision stopped at, or the present one waits for.
std::optional<control::RestoreStop> StopOf(const StatusInputs& in, const std::string& job) {
  const auto& status = in.coordinating ? in.coordinating : in.node.job;
  if (status && status->has_waiting() && status->waiting().job() == job) return status->waiting();
  if (in.node.stop && in.node.stop->job() == job) return in.node.stop;
  return std::nullopt;
}

Result<std::vector<control::RestoreOrder>> OrdersOf(const Request& request,
                                                    const std::string& job) {
  std::vector<control::RestoreOrder> orders;
  const auto add = [&]() -> control::RestoreOrder& {
    orders.emplace_back().set_job(job);
    return orders.back();
  };
  for (const std::string& node : request.without) {
    if (!IsValidNodeName(node)) {
      return Error(Code::kInvalidArgument,
                   fmt::format("\"{}\" is no node's name", EscapeForLog(node, 64)));
    }
    add().set_without(node);
  }
  if (request.without_absent) add().set_without_absent(true);
  for (const std::string& text : request.skip) {
    if (const auto step = ParseDecimal(text)) {
      add().set_skip_step(*step);
    } else if (const auto save = ParseNumberedSave(text)) {
      *add().mutable_skip() = *save;
    } else {
      return Error(Code::kInvalidArgument,
                   fmt::format("\"{}\" is neither a step nor RUN/SAVE, as `tierkeep status` shows "
                               "them",
                               EscapeForLog(text, 64)));
    }
  }
  if (orders.empty()) return BadRequest("it orders nothing");
  return orders;
}

// Nothing may be given up that no decision has stopped at: what it would cost is known only then.
Status CheckStop(const Request& request, const std::string& job,
                 const std::optional<control::RestoreStop>& stop) {
  if (request.without.empty() && !request.without_absent) return OkStatus();
  if (!stop) {
    return Error(Code::kFailedPrecondition,
                 fmt::format("this node knows of no restore decision of job {} that has stopped or "
                             "waits: nothing is given up beforehand",
                             job));
  }
  for (const std::string& node : request.without) {
    if (std::find(stop->nodes().begin(), stop->nodes().end(), node) != stop->nodes().end()) {
      continue;
    }
    return Error(Code::kFailedPrecondition,
                 fmt::format("no restore decision of job {} stopped because of node {}, but of: {}",
                             job, node, fmt::join(stop->nodes(), ", ")));
  }
  return OkStatus();
}

// What a skip order would hit, as far as this node knows.
json Hits(const StatusInputs& in, const Store& store, const control::RestoreOrder& order) {
  json hits = json::array();
  const auto add = [&](const std::string& text) {
    if (std::find(hits.begin(), hits.end(), text) == hits.end()) hits.push_back(text);
  };
  for (const auto& record : store.Generations()) {
    const SaveKey save = FromProto(record->save());
    const bool hit = order.has_skip_step()
                         ? save.step == order.skip_step()
                         : save.run.ToString() == order.skip().run() &&
                               record->save_number() == order.skip().save_number();
    if (record->job() == order.job() && hit) add(save.ToString());
  }
  for (const HeldShard& shard : in.shards) {
    const ShardIdentity& id = shard.manifest->identity;
    if (id.job == order.job() && order.has_skip_step() && id.save.step == order.skip_step()) {
      add(id.save.ToString());
    }
  }
  return hits;
}

Result<json> GiveOrders(const RestoreApiParts& parts, const Request& request) {
  const StatusInputs in = parts.snapshot();
  TK_ASSIGN_OR_RETURN(const std::string job, JobOf(request, in));
  TK_ASSIGN_OR_RETURN(const auto orders, OrdersOf(request, job));
  const auto stop = StopOf(in, job);
  TK_RETURN_IF_ERROR(CheckStop(request, job, stop));
  json out = {{"version", 1}, {"job", job}, {"orders", json::array()}, {"hits", json::array()}};
  for (control::RestoreOrder order : orders) {
    if (!HasOrder(in.node.orders, order) && in.node.orders.size() >= kRestoreOrdersMax) {
      return Error(Code::kFailedPrecondition, "too many orders wait for the next restore decision");
    }
    order.set_after(WallMillis(parts.clock->WallNow()));
    TK_RETURN_IF_ERROR(parts.give_order(order));
    out["orders"].push_back(ToString(order));
    if (order.has_skip_step() || order.has_skip()) {
      for (const json& hit : Hits(in, *parts.store, order)) out["hits"].push_back(hit);
    }
  }
  if (stop && (!request.without.empty() || request.without_absent)) {
    out["given_up"] = json::array();
    for (const std::string& text : stop->given_up()) out["given_up"].push_back(text);
    out["instead"] = stop->instead();
  }
  return out;
}

}  // namespace

HttpHandler MakeRestoreHandler(RestoreApiParts parts) {
  return [parts = std::move(parts)](const HttpRequest& request) -> HttpResponse {
    if (request.method != "POST" ||
        (request.path != "/v1/restore/orders" && request.path != "/v1/restore/to")) {
      return NoSuchResource(request);
    }
    auto read = ReadRequest(request.body);
    if (!read.ok()) return Refuse(read.error());
    if (request.path == "/v1/restore/orders") {
      auto answer = GiveOrders(parts, *read);
      return answer.ok() ? JsonAnswer(*answer) : Refuse(answer.error());
    }
    const StatusInputs in = parts.snapshot();
    auto job = JobOf(*read, in);
    if (!job.ok()) return Refuse(job.error());
    read->to.job = *job;
    auto answer = RestoreTo(parts, in, read->to);
    return answer.ok() ? JsonAnswer(*answer) : Refuse(answer.error());
  };
}

}  // namespace tierkeep
