#include "tiers/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

namespace tierkeep {
namespace {

TEST(WorkerPoolTest, RunsEachIndexOnce) {
  WorkerPool pool(3);
  for (const size_t n : {0, 1, 2, 3, 4, 1000}) {
    std::vector<std::atomic<int>> runs(n);
    pool.ParallelFor(n, [&](size_t i) { ++runs[i]; });
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(runs[i], 1) << i << " of " << n;
  }
}

TEST(WorkerPoolTest, LoopsInsideOfLoopsFinishThoughAllThreadsAreBusy) {
  WorkerPool pool(2);
  std::atomic<int> runs{0};
  pool.ParallelFor(8, [&](size_t) {
    pool.ParallelFor(8, [&](size_t) { pool.ParallelFor(4, [&](size_t) { ++runs; }); });
  });
  EXPECT_EQ(runs, 8 * 8 * 4);
}

TEST(WorkerPoolTest, UsesThePoolsThreadsBesideTheCallers) {
  WorkerPool pool(2);
  // Passes only if three threads are in the loop at once.
  std::latch all_in(3);
  pool.ParallelFor(3, [&](size_t) { all_in.arrive_and_wait(); });
}

TEST(WorkerPoolTest, DestructionRunsWhatWasSubmitted) {
  std::atomic<int> runs{0};
  {
    WorkerPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Submit([&] { ++runs; });
  }
  EXPECT_EQ(runs, 100);
}

}  // namespace
}  // namespace tierkeep
