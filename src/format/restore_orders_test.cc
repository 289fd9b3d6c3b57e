#include "format/restore_orders.h"

#include <gtest/gtest.h>

#include "format/format_testutil.h"
#include "format/message_checks.h"
#include "format/messages.h"

namespace tierkeep {
namespace {

control::RestoreOrder SkipStep(uint64_t step, uint64_t after = 1) {
  control::RestoreOrder order;
  order.set_job("job");
  order.set_skip_step(step);
  order.set_after(after);
  return order;
}

TEST(RestoreOrders, OneSaveHasOneText) {
  const auto save = ParseNumberedSave("17-0a1b2c3d/2");
  ASSERT_TRUE(save.has_value());
  EXPECT_EQ(save->run(), "17-0a1b2c3d");
  EXPECT_EQ(save->save_number(), 2U);
  for (const char* bad : {"", "17", "17-0a1b2c3d", "17-0a1b2c3d/", "17-0a1b2c3d/0",
                          "17-0a1b2c3d/02", "17-0A1B2C3D/2", "17-0a1b2c3/2", "0-0a1b2c3d/2",
                          "017-0a1b2c3d/2", "17-0a1b2c3d/2/", "-0a1b2c3d/2", "17-0a1b2c3d /2"}) {
    EXPECT_FALSE(ParseNumberedSave(bad).has_value()) << bad;
  }
}

TEST(RestoreOrders, EqualOnesAreOneAndTheLaterCounts) {
  RestoreOrders orders;
  RestoreOrders more;
  *more.Add() = SkipStep(5, 10);
  EXPECT_TRUE(AddOrders(&orders, more));
  more.Mutable(0)->set_after(20);
  EXPECT_FALSE(AddOrders(&orders, more));
  more.Mutable(0)->set_after(15);
  EXPECT_FALSE(AddOrders(&orders, more));
  ASSERT_EQ(orders.size(), 1);
  EXPECT_EQ(orders[0].after(), 20U);
  EXPECT_TRUE(HasOrder(orders, SkipStep(5)));
  EXPECT_FALSE(HasOrder(orders, SkipStep(6)));
  control::RestoreOrder other = SkipStep(5);
  other.set_job("other");
  EXPECT_FALSE(HasOrder(orders, other));
  for (uint64_t step = 0; step < 2 * kRestoreOrdersMax; ++step) *more.Add() = SkipStep(step);
  AddOrders(&orders, more);
  EXPECT_EQ(orders.size(), kRestoreOrdersMax);
  RestoreOrders done;
  *done.Add() = SkipStep(5, 0);
  EXPECT_TRUE(RemoveOrders(&orders, done));
  EXPECT_FALSE(RemoveOrders(&orders, done));
  EXPECT_FALSE(HasOrder(orders, SkipStep(5)));
}

TEST(RestoreOrders, AreCheckedWhereverTheyStand) {
  control::Envelope message;
  message.set_job("job");
  message.set_sender("n0");
  auto* orders = message.mutable_restore_orders();
  *orders->add_orders() = SkipStep(5);
  EXPECT_TRUE(CheckEnvelope(message).ok());
  orders->mutable_orders(0)->set_job("other");
  EXPECT_FALSE(CheckEnvelope(message).ok());
  orders->mutable_orders(0)->set_job("job");
  orders->mutable_orders(0)->set_without("../n1");
  EXPECT_FALSE(CheckEnvelope(message).ok());
  orders->mutable_orders(0)->set_without_absent(false);
  EXPECT_FALSE(CheckEnvelope(message).ok());
  orders->mutable_orders(0)->mutable_skip()->set_run("17-0a1b2c3d");
  EXPECT_FALSE(CheckEnvelope(message).ok());  // no save number
  orders->mutable_orders(0)->mutable_skip()->set_save_number(1);
  EXPECT_TRUE(CheckEnvelope(message).ok());
  orders->mutable_orders(0)->clear_what();
  EXPECT_FALSE(CheckEnvelope(message).ok());
}

TEST(RestoreOrders, ARendezvousMarkIsChecked) {
  control::RendezvousRecord record;
  record.set_job("job");
  record.set_epoch(1);
  record.mutable_coordinator()->set_host("h");
  record.mutable_coordinator()->set_port(1);
  record.set_boot(std::string(16, 'b'));
  record.set_node("n0");
  auto* mark = record.mutable_newest();
  EXPECT_FALSE(EncodeRendezvousRecord(record).ok());
  mark->mutable_run()->set_sequence(7);
  mark->mutable_run()->set_nonce(std::string(16, 'n'));
  mark->mutable_world()->set_framework(1);
  mark->mutable_world()->set_nodes(1);
  mark->mutable_world()->set_workers_per_node(1);
  mark->add_nodes("n0");
  const auto encoded = EncodeRendezvousRecord(record);
  ASSERT_TRUE(encoded.ok()) << encoded.error().ToString();
  EXPECT_EQ(DecodeRendezvousRecord(*encoded)->SerializeAsString(), record.SerializeAsString());
  mark->add_nodes("a/b");
  EXPECT_FALSE(EncodeRendezvousRecord(record).ok());
}

}  // namespace
}  // namespace tierkeep
