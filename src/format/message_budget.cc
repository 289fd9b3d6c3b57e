#include "format/message_budget.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

namespace tierkeep {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::io::CodedInputStream;

constexpr int kDepthMax = 16;
// Generous sizes of what the parser makes, its share of the allocator's overhead included.
constexpr int64_t kMessageCost = 192;
constexpr int64_t kStringCost = 64;
constexpr int64_t kUnknownCost = 48;
constexpr int64_t kNumberCost = 16;
constexpr int64_t kCostPerByte = 12;
constexpr int64_t kCostFree = 1 << 20;

// https://protobuf.dev/programming-guides/encoding/#structure
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

bool IsNumber(const FieldDescriptor& field) {
  return field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
         field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
}

class Walker {
 public:
  Walker(CodedInputStream* in, int64_t budget) : in_(*in), budget_(budget) {}

  // `type` is null inside what this version doesn't know.
  bool Message(const Descriptor* type, int depth) {
    if (depth > kDepthMax) return false;
    while (const uint32_t tag = in_.ReadTag()) {
      const FieldDescriptor* field = type->FindFieldByNumber(static_cast<int>(tag >> 3));
      if (!Field(field, tag & 7, depth) || budget_ < 0) return false;
    }
    // A tag of 0 or a torn one also ends the loop.
    return in_.ConsumedEntireMessage() && in_.BytesUntilLimit() == 0;
  }

 private:
  bool Field(const FieldDescriptor* field, uint32_t wire_type, int depth) {
    switch (wire_type) {
      case kVarint: {
        uint64_t value;
        Charge(field);
        return in_.ReadVarint64(&value);
      }
      case kFixed64: {
        uint64_t value;
        Charge(field);
        return in_.ReadLittleEndian64(&value);
      }
      case kFixed32: {
        uint32_t value;
        Charge(field);
        return in_.ReadLittleEndian32(&value);
      }
      case kLength:
        return LengthDelimited(field, depth);
      default:  // groups: none of our messages has one
        return false;
    }
  }

  void Charge(const FieldDescriptor* field) {
    if (field == nullptr || !IsNumber(*field)) {
      budget_ -= kUnknownCost;
    } else if (field->is_repeated()) {
      budget_ -= kNumberCost;
    }
  }

  bool LengthDelimited(const FieldDescriptor* field, int depth) {
    uint32_t length;
    if (!in_.ReadVarint32(&length) || length > INT32_MAX ||
        static_cast<int>(length) > in_.BytesUntilLimit()) {
      return false;
    }
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      budget_ -= kMessageCost;
      const auto limit = in_.PushLimit(static_cast<int>(length));
      const bool good = Message(field->message_type(), depth + 1);
      in_.PopLimit(limit);
      return good;
    }
    if (field == nullptr) {
      budget_ -= kUnknownCost;
    } else if (IsNumber(*field)) {
      budget_ -= static_cast<int64_t>(length) * 8;  // packed; a vector may be half empty
    } else if (field->is_repeated()) {
      budget_ -= kStringCost;
    }
    return in_.Skip(static_cast<int>(length));
  }

  CodedInputStream& in_;
  int64_t budget_;
};

}  // namespace

Status CheckMessageBudget(const Descriptor& type, std::string_view bytes) {
  if (bytes.size() > INT32_MAX) return Error(Code::kInvalidArgument, "message: over 2 GiB");
  const auto size = static_cast<int>(bytes.size());
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), size);
  in.PushLimit(size);
  Walker walker(&in, kCostFree + kCostPerByte * size);
  if (!walker.Message(&type, 0)) {
    return Error(
        Code::kInvalidArgument,
        "message: it is no encoding of one, or it describes far more than its size allows");
  }
  return OkStatus();
}

}  // namespace tierkeep
