#include "core/action_names.h"

#include <gmock/gmock.h>

#include <set>

namespace tierkeep {
namespace {

using ::testing::Contains;

template <typename Variant>
void ExpectDistinct(const std::vector<std::string_view>& names) {
  EXPECT_EQ(names.size(), std::variant_size_v<Variant>);
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
  for (const std::string_view name : names) {
    EXPECT_FALSE(name.empty());
    for (const char c : name) EXPECT_TRUE(std::isalpha(static_cast<unsigned char>(c))) << name;
  }
}

TEST(ActionNames, EachActionHasItsOwn) {
  ExpectDistinct<NodeAction::Any>(NodeActionNames());
  ExpectDistinct<CoordinatorAction::Any>(CoordinatorActionNames());
  EXPECT_THAT(NodeActionNames(), Contains("RecordGeneration"));
  EXPECT_THAT(CoordinatorActionNames(), Contains("WriteRendezvous"));
}

TEST(ActionNames, AnActionSaysItsName) {
  EXPECT_EQ(ActionName(NodeAction::Any(NodeAction::CancelTask{})), "CancelTask");
  EXPECT_EQ(ActionName(CoordinatorAction::Any(CoordinatorAction::Send{})), "Send");
  EXPECT_EQ(NodeActionNames()[NodeAction::Any(NodeAction::Disconnect{}).index()], "Disconnect");
}

}  // namespace
}  // namespace tierkeep
