#include "format/message_budget.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tierkeep {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr int kDepthMax = 16;
// Generous sizes of what the parser makes, its share of the allocator's overhead included.
constexpr int64_t kMessageCost = 192;
constexpr int64_t kStringCost = 64;
constexpr int64_t kUnknownCost = 48;
constexpr int64_t kNumberCost = 16;
constexpr int64_t kCostPerByte = 12;
constexpr int64_t kCostFree = 1 << 20;
// An object takes two bytes at least.
static_assert(kAlwaysFitsBytes * kMessageCost / 2 <= kCostFree);

// https://protobuf.dev/programming-guides/encoding/#structure
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// What of a message's description counts here. Asking the library's for each field of each message
// took longer than to parse it.
struct Plan;
struct FieldPlan {
  enum class Kind : uint8_t { kUnknown, kNumber, kNumbers, kText, kTexts, kMessage };
  Kind kind = Kind::kUnknown;
  const Plan* message = nullptr;
};
struct Plan {
  std::vector<FieldPlan> fields;  // by number: those of our messages are small
};
using Kind = FieldPlan::Kind;

class Plans {
 public:
  // Stays for good. Any thread.
  const Plan& Of(const Descriptor& type) {
    const std::lock_guard lock(mutex_);
    return Make(type);
  }

 private:
  const Plan& Make(const Descriptor& type) {
    auto [it, fresh] = plans_.try_emplace(&type);
    if (!fresh) return *it->second;
    it->second = std::make_unique<Plan>();
    Plan& plan = *it->second;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      const auto number = static_cast<size_t>(field.number());
      plan.fields.resize(std::max(plan.fields.size(), number + 1));
      FieldPlan& out = plan.fields[number];
      if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        out = {Kind::kMessage, &Make(*field.message_type())};
      } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
        out.kind = field.is_repeated() ? Kind::kTexts : Kind::kText;
      } else {
        out.kind = field.is_repeated() ? Kind::kNumbers : Kind::kNumber;
      }
    }
    return plan;
  }

  std::mutex mutex_;
  std::map<const Descriptor*, std::unique_ptr<Plan>> plans_;
};

class Walker {
 public:
  Walker(std::string_view bytes, int64_t budget)
      : at_(reinterpret_cast<const uint8_t*>(bytes.data())),
        end_(at_ + bytes.size()),
        budget_(budget) {}

  // From here to the end.
  bool Message(const Plan& plan, int depth) {
    if (depth > kDepthMax) return false;
    uint64_t tag;
    while (at_ < end_) {
      if (!ReadVarint(&tag) || tag == 0 || tag > UINT32_MAX) return false;
      const uint64_t number = tag >> 3;
      const FieldPlan field = number < plan.fields.size() ? plan.fields[number] : FieldPlan{};
      if (!Field(field, tag & 7, depth) || budget_ < 0) return false;
    }
    return true;
  }

 private:
  bool Field(const FieldPlan& field, uint32_t wire_type, int depth) {
    switch (wire_type) {
      case kVarint: {
        uint64_t value;
        Charge(field);
        return ReadVarint(&value);
      }
      case kFixed64:
        Charge(field);
        return Skip(8);
      case kFixed32:
        Charge(field);
        return Skip(4);
      case kLength:
        return LengthDelimited(field, depth);
      default:  // groups: none of our messages has one
        return false;
    }
  }

  void Charge(const FieldPlan& field) {
    if (field.kind == Kind::kNumbers) {
      budget_ -= kNumberCost;
    } else if (field.kind != Kind::kNumber) {
      budget_ -= kUnknownCost;
    }
  }

  bool LengthDelimited(const FieldPlan& field, int depth) {
    uint64_t length;
    if (!ReadVarint(&length) || length > static_cast<uint64_t>(end_ - at_)) return false;
    switch (field.kind) {
      case Kind::kMessage: {
        budget_ -= kMessageCost;
        const uint8_t* const outer = std::exchange(end_, at_ + length);
        const bool good = Message(*field.message, depth + 1);
        end_ = outer;
        return good;
      }
      case Kind::kUnknown:
        budget_ -= kUnknownCost;
        break;
      case Kind::kNumber:
      case Kind::kNumbers:
        budget_ -= static_cast<int64_t>(length) * 8;  // packed; a vector may be half empty
        break;
      case Kind::kTexts:
        budget_ -= kStringCost;
        break;
      case Kind::kText:
        break;
    }
    return Skip(length);
  }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (unsigned shift = 0; shift < 70 && at_ < end_; shift += 7) {
      const uint8_t byte = *at_++;
      *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Skip(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) return false;
    at_ += bytes;
    return true;
  }

  const uint8_t* at_;
  const uint8_t* end_;  // of the message that is being walked
  int64_t budget_;
};

}  // namespace

Status CheckMessageBudget(const Descriptor& type, std::string_view bytes) {
  if (bytes.size() > INT32_MAX) return Error(Code::kInvalidArgument, "message: over 2 GiB");
  static Plans plans;
  const auto size = static_cast<int64_t>(bytes.size());
  Walker walker(bytes, kCostFree + kCostPerByte * size);
  if (!walker.Message(plans.Of(type), 0)) {
    return Error(
        Code::kInvalidArgument,
        "message: it is no encoding of one, or it describes far more than its size allows");
  }
  return OkStatus();
}

}  // namespace tierkeep
