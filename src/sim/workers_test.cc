#include "sim/workers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <map>

namespace tierkeep::sim {
namespace {

TEST(WorkersTest, LinesComeInOrderAndDeathsAreTold) {
  Workers workers;
  std::map<int, std::vector<std::string>> lines;
  std::map<int, std::string> deaths;
  for (int i = 0; i < 5; ++i) {
    workers.Add({[i](const Workers::Say& say) {
                   say(fmt::format("{} begins", i));
                   if (i == 2) ::raise(SIGKILL);
                   if (i == 3) ::_exit(7);
                   say(fmt::format("{} ends", i));
                 },
                 [&lines, i](const std::string& line) { lines[i].push_back(line); },
                 [&deaths, i](const std::string& death) { deaths[i] = death; }});
  }
  workers.Run(2);
  EXPECT_EQ(lines[1], (std::vector<std::string>{"1 begins", "1 ends"}));
  EXPECT_EQ(lines[2], (std::vector<std::string>{"2 begins"}));
  EXPECT_EQ(lines[4], (std::vector<std::string>{"4 begins", "4 ends"}));
  EXPECT_EQ(deaths.size(), 5U);
  EXPECT_EQ(deaths[0], "");
  EXPECT_EQ(deaths[2], "signal Killed");
  EXPECT_EQ(deaths[3], "exit status 7");
}

TEST(WorkersTest, OneThatDiedIsFollowedByAnother) {
  Workers workers;
  int ended = 0;
  std::function<void()> add = [&] {
    workers.Add({[](const Workers::Say&) { ::_exit(1); }, [](const std::string&) {},
                 [&](const std::string&) {
                   if (++ended < 3) add();
                 }});
  };
  add();
  workers.Run(1);
  EXPECT_EQ(ended, 3);
}

TEST(WorkersTest, StopEndsWhatRunsAndForgetsWhatWaits) {
  Workers workers;
  int ended = 0;
  for (int i = 0; i < 3; ++i) {
    workers.Add({[](const Workers::Say& say) {
                   say("here");
                   for (;;) ::pause();  // until it is ended
                 },
                 [&](const std::string&) { workers.Stop(); },
                 [&](const std::string&) { ++ended; }});
  }
  workers.Run(2);
  EXPECT_EQ(ended, 0);
}

}  // namespace
}  // namespace tierkeep::sim
