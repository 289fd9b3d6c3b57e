// Control messages between agents and the coordinator, with all their checks.

#include "base/check.h"
#include "format/message_testutil.h"
#include "format/messages.h"
#include "fuzz_target.h"

namespace tierkeep::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The core turns the parts of a checked message into its own types, which must never fail.
void Convert(const Message& m) {
  const auto* type = m.GetDescriptor();
  if (type == control::ShardInfo::descriptor()) {
    const auto& shard = dynamic_cast<const control::ShardInfo&>(m);
    TK_CHECK(FromProto(ToProto(FromProto(shard))) == FromProto(shard));
  } else if (type == control::SaveKey::descriptor()) {
    FromProto(dynamic_cast<const control::SaveKey&>(m));
  } else if (type == control::RunId::descriptor()) {
    FromProto(dynamic_cast<const control::RunId&>(m));
  } else if (type == control::AttemptId::descriptor()) {
    FromProto(dynamic_cast<const control::AttemptId&>(m));
  } else if (type == control::WorldShape::descriptor()) {
    FromProto(dynamic_cast<const control::WorldShape&>(m));
  } else if (type == control::JobSettings::descriptor()) {
    WithSettings({}, dynamic_cast<const control::JobSettings&>(m));
  }
  std::vector<const FieldDescriptor*> fields;
  m.GetReflection()->ListFields(m, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      Convert(m.GetReflection()->GetMessage(m, field));
      continue;
    }
    for (int i = 0; i < m.GetReflection()->FieldSize(m, field); ++i) {
      Convert(m.GetReflection()->GetRepeatedMessage(m, field, i));
    }
  }
}

}  // namespace

void RunOne(std::string_view input) {
  const auto decoded = DecodeEnvelope(input);
  if (!decoded.ok()) {
    // kUnimplemented: a kind of message that this version does not know.
    TK_CHECK(decoded.error().code() == Code::kInvalidArgument ||
             decoded.error().code() == Code::kUnimplemented);
    return;
  }
  // docs/protocol.md, "Control": about twelve times the message's size, and a first megabyte.
  TK_CHECK(decoded->SpaceUsedLong() <= (1u << 20) + 12 * input.size());
  Convert(*decoded);
  // Texts are cleaned on the way out; then nothing changes any more.
  const auto encoded = EncodeEnvelope(*decoded);
  TK_CHECK_MSG(encoded.ok(), encoded.error().message());
  const auto again = DecodeEnvelope(*encoded);
  TK_CHECK_MSG(again.ok(), again.error().message());
  TK_CHECK(*EncodeEnvelope(*again) == *encoded);
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  MessageMaker maker{Prng(1)};
  for (const control::Envelope& e : maker.All()) seeds.push_back(*EncodeEnvelope(e));
  return seeds;
}

}  // namespace tierkeep::fuzz
