#include "format/message_budget.h"

#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include "control.pb.h"

namespace tierkeep {
namespace {

TEST(MessageBudget, RefusesManyUnknownFieldsManyEmptyTextsAndWhatIsNoEncoding) {
  const google::protobuf::Descriptor& type = *control::Envelope::descriptor();
  std::string unknown;
  for (int i = 0; i < 100'000; ++i) unknown += "\xf8\x06\x01";
  EXPECT_FALSE(CheckMessageBudget(type, unknown).ok());
  std::string empty_texts;  // job_status.problems
  for (int i = 0; i < 100'000; ++i) empty_texts += std::string("\x2a\x00", 2);
  std::string status = "\xd2\x01";
  const size_t size = empty_texts.size();
  status += static_cast<char>(size | 0x80);
  status += static_cast<char>(size >> 7 | 0x80);
  status += static_cast<char>(size >> 14);
  EXPECT_FALSE(CheckMessageBudget(type, status + empty_texts).ok());
  EXPECT_FALSE(CheckMessageBudget(type, "\x0b\x0c").ok());                  // a group
  EXPECT_FALSE(CheckMessageBudget(type, std::string("\x00\x00", 2)).ok());  // field 0
  EXPECT_FALSE(CheckMessageBudget(type, "\x0a\x05job").ok());               // torn
  EXPECT_FALSE(CheckMessageBudget(type, "\x0a\xff\xff\xff\xff\x7f").ok());  // overlong
  EXPECT_TRUE(CheckMessageBudget(type, "").ok());
  EXPECT_TRUE(CheckMessageBudget(type, "\x0a\x03job").ok());
}

TEST(MessageBudget, RefusesDeepNesting) {
  // The messages themselves nest a few levels only; what is unknown isn't walked into. So the depth
  // is tried with a type that holds itself.
  const auto nested = [](int levels) {
    std::string bytes;
    for (int i = 0; i < levels; ++i) {
      bytes = "\x1a" + std::string(1, static_cast<char>(bytes.size())) + bytes;
    }
    return bytes;
  };
  const google::protobuf::Descriptor& type = *google::protobuf::DescriptorProto::descriptor();
  EXPECT_TRUE(CheckMessageBudget(type, nested(16)).ok());
  EXPECT_FALSE(CheckMessageBudget(type, nested(17)).ok());
}

}  // namespace
}  // namespace tierkeep
