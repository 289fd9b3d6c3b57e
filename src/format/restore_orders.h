// What an operator asks of the next restore decision (control.proto, RestoreOrder).
//
// Threads: any.
#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "control.pb.h"

namespace tierkeep {

// More for one job are refused: an operator's typing, not a program's output.
inline constexpr int kRestoreOrdersMax = 64;

using RestoreOrders = google::protobuf::RepeatedPtrField<control::RestoreOrder>;

// Whether a text is a run in its form for people, "17-0a1b2c3d".
bool IsRunText(std::string_view text);
// "17-0a1b2c3d/2": one numbered save. Empty for anything else.
std::optional<control::NumberedSave> ParseNumberedSave(std::string_view text);

// kInvalidArgument: one breaks a rule, is of a kind that this version doesn't know or, where `job`
// isn't empty, of another job; or they are too many.
Status CheckRestoreOrders(const RestoreOrders& orders, const std::string& job);

// "skip step 20", "without node n1": for logs, status and the command line.
std::string ToString(const control::RestoreOrder& order);

// Whether `orders` holds an equal one, whenever it was given.
bool HasOrder(const RestoreOrders& orders, const control::RestoreOrder& order);
// Adds what isn't there yet, up to kRestoreOrdersMax; of equal ones the later counts. Whether
// anything was added.
bool AddOrders(RestoreOrders* to, const RestoreOrders& from);
// A new order is later than an equal one that was dealt with, whatever the clock said that this one
// was given by.
void RaiseAbove(const RestoreOrders& done, control::RestoreOrder* order);
// Removes what stands in `done`. Whether anything went.
bool RemoveOrders(RestoreOrders* from, const RestoreOrders& done);

}  // namespace tierkeep
