#include "agent/event_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "agent/ordered_queue.h"

namespace tierkeep {
namespace {

// A clock that moves only when told; the loop then fires what is due at its next turn.
class ManualClock : public Clock {
 public:
  Instant Now() override { return Instant(Duration(now_.load())); }
  WallTime WallNow() override { return WallTime(Duration(now_.load())); }
  void Advance(Duration d) { now_ += d.count(); }

 private:
  std::atomic<int64_t> now_{0};
};

TEST(EventLoop, RunsPostedWorkInOrderAndAllOfItBeforeItStops) {
  ManualClock clock;
  EventLoop loop(&clock);
  std::vector<int> ran;
  std::thread poster([&] {
    for (int i = 0; i < 1000; ++i) loop.Post([&ran, i] { ran.push_back(i); });
    loop.Stop();
  });
  loop.Run();
  poster.join();
  ASSERT_EQ(ran.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

TEST(EventLoop, TimersFireWhenDueMoveAndCancel) {
  ManualClock clock;
  EventLoop loop(&clock);
  std::string fired;
  const Instant start = clock.Now();
  loop.SetTimer({1, 1}, start + 10s, [&] { fired += "a"; });
  loop.SetTimer({1, 2}, start + 20s, [&] { fired += "b"; });
  loop.SetTimer({2, 1}, start + 10s, [&] { fired += "c"; });
  loop.SetTimer({2, 2}, start + 10s, [&] { fired += "d"; });
  loop.SetTimer({1, 1}, start + 30s, [&] { fired += "A"; });  // moved
  loop.CancelTimer({2, 2});
  loop.Post([&] { clock.Advance(10s); });
  loop.Post([&] {
    // Timers fire after the work of a turn: one more turn shows what was due at 10 s.
    loop.Post([&] {
      EXPECT_EQ(fired, "c");
      loop.CancelTimersOf(2);
      clock.Advance(30s);
      loop.Post([&] {
        EXPECT_EQ(fired, "cAb");
        loop.Stop();
      });
    });
  });
  loop.Run();
}

TEST(EventLoop, ATimerMayCancelAnotherThatIsDueToo) {
  ManualClock clock;
  EventLoop loop(&clock);
  std::string fired;
  loop.SetTimer({1, 1}, clock.Now(), [&] {
    fired += "first";
    loop.CancelTimer({1, 2});
    loop.Stop();
  });
  loop.SetTimer({1, 2}, clock.Now(), [&] { fired += "second"; });
  loop.Post([] {});
  loop.Run();
  EXPECT_EQ(fired, "first");
}

TEST(OrderedQueue, RunsEverythingInOrderBeforeItIsGone) {
  std::vector<int> ran;
  {
    OrderedQueue queue;
    for (int i = 0; i < 500; ++i) queue.Submit([&ran, i] { ran.push_back(i); });
  }
  ASSERT_EQ(ran.size(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(ran[static_cast<size_t>(i)], i);
}

}  // namespace
}  // namespace tierkeep
