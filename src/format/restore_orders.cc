#include "format/restore_orders.h"

#include <fmt/format.h>

#include <algorithm>

#include "format/decimal.h"
#include "format/ids.h"
#include "format/volume_names.h"

namespace tierkeep {
namespace {

bool IsSame(const control::RestoreOrder& a, const control::RestoreOrder& b) {
  return a.job() == b.job() && a.what_case() == b.what_case() && ToString(a) == ToString(b);
}

Status CheckRestoreOrder(const control::RestoreOrder& order) {
  const auto bad = [](std::string_view what) {
    return Error(Code::kInvalidArgument, "order." + std::string(what));
  };
  if (!IsValidJobName(order.job())) return bad("job is no job name");
  switch (order.what_case()) {
    case control::RestoreOrder::kWithout:
      if (!IsValidNodeName(order.without())) return bad("without is no node name");
      return OkStatus();
    case control::RestoreOrder::kWithoutAbsent:
      if (!order.without_absent()) return bad("without_absent is false");
      return OkStatus();
    case control::RestoreOrder::kSkipStep:
      return OkStatus();
    case control::RestoreOrder::kSkip:
      if (!IsRunText(order.skip().run())) return bad("skip.run has another form");
      if (order.skip().save_number() == 0) return bad("skip.save_number is 0");
      return OkStatus();
    case control::RestoreOrder::WHAT_NOT_SET:
      break;
  }
  return bad("what is missing or unknown");
}

}  // namespace

bool IsRunText(std::string_view text) {
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return false;
  const auto sequence = ParseDecimal(text.substr(0, dash));
  const std::string_view nonce = text.substr(dash + 1);
  return sequence && *sequence > 0 && nonce.size() == 8 &&
         nonce.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::optional<control::NumberedSave> ParseNumberedSave(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos || !IsRunText(text.substr(0, slash))) return std::nullopt;
  const auto number = ParseDecimal(text.substr(slash + 1));
  if (!number || *number == 0) return std::nullopt;
  control::NumberedSave save;
  save.set_run(std::string(text.substr(0, slash)));
  save.set_save_number(*number);
  return save;
}

Status CheckRestoreOrders(const RestoreOrders& orders, const std::string& job) {
  if (orders.size() > kRestoreOrdersMax) {
    return Error(Code::kInvalidArgument, fmt::format("{} orders are too many", orders.size()));
  }
  for (const auto& order : orders) {
    TK_RETURN_IF_ERROR(CheckRestoreOrder(order));
    if (!job.empty() && order.job() != job) {
      return Error(Code::kInvalidArgument, "order.job is not the sender's");
    }
  }
  return OkStatus();
}

std::string ToString(const control::RestoreOrder& order) {
  switch (order.what_case()) {
    case control::RestoreOrder::kWithout:
      return "without node " + order.without();
    case control::RestoreOrder::kWithoutAbsent:
      return "without the nodes that are away";
    case control::RestoreOrder::kSkipStep:
      return fmt::format("skip step {}", order.skip_step());
    case control::RestoreOrder::kSkip:
      return fmt::format("skip {}/{}", order.skip().run(), order.skip().save_number());
    case control::RestoreOrder::WHAT_NOT_SET:
      break;
  }
  return "nothing";
}

bool HasOrder(const RestoreOrders& orders, const control::RestoreOrder& order) {
  return std::any_of(orders.begin(), orders.end(),
                     [&](const control::RestoreOrder& other) { return IsSame(other, order); });
}

bool AddOrders(RestoreOrders* to, const RestoreOrders& from) {
  bool added = false;
  for (const control::RestoreOrder& order : from) {
    const auto same = std::find_if(to->begin(), to->end(), [&](const control::RestoreOrder& other) {
      return IsSame(other, order);
    });
    if (same != to->end()) {
      same->set_after(std::max(same->after(), order.after()));
    } else if (to->size() < kRestoreOrdersMax) {
      *to->Add() = order;
      added = true;
    }
  }
  return added;
}

void RaiseAbove(const RestoreOrders& done, control::RestoreOrder* order) {
  for (const control::RestoreOrder& other : done) {
    if (IsSame(other, *order)) order->set_after(std::max(order->after(), other.after() + 1));
  }
}

bool RemoveOrders(RestoreOrders* from, const RestoreOrders& done) {
  const int before = from->size();
  from->erase(std::remove_if(from->begin(), from->end(),
                             [&](const auto& order) { return HasOrder(done, order); }),
              from->end());
  return from->size() != before;
}

}  // namespace tierkeep
