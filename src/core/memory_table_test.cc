// Every cell of the outcome tables in docs/memory.md, in a whole cluster in memory: placement by
// state by size of the volume by --on-pressure. The tables are read from the document, so that it
// can't say anything else than what happens; a row, a column or a word that this test doesn't know
// fails it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "core/cluster_testutil.h"
#include "core/holdings.h"

namespace tierkeep {
namespace {

constexpr uint64_t kSave = 100 << 20;

// ---- the document ----------------------------------------------------------------------------

struct Cell {
  std::string policy;
  std::string placement;
  std::string state;
  std::string size;  // in saves
  std::string outcome;
};

std::vector<std::string> SplitRow(const std::string& line) {
  std::vector<std::string> parts;
  std::istringstream in(line.substr(1));
  for (std::string part; std::getline(in, part, '|');) {
    const size_t begin = part.find_first_not_of(' ');
    parts.push_back(begin == std::string::npos
                        ? ""
                        : part.substr(begin, part.find_last_not_of(' ') - begin + 1));
  }
  return parts;
}

// Tables whose first columns are Placement and State; the policy is that of the heading above.
std::vector<Cell> ReadCells() {
  std::ifstream in(TIERKEEP_SOURCE_DIR "/docs/memory.md");
  std::vector<Cell> cells;
  std::vector<std::string> head;
  std::string policy;
  std::string placement;
  for (std::string line; std::getline(in, line);) {
    if (const size_t at = line.find("--on-pressure="); line.starts_with("### ")) {
      policy = at == std::string::npos ? "" : line.substr(at + 14, line.find('`', at) - at - 14);
    }
    if (!line.starts_with("|")) {
      head.clear();
      continue;
    }
    const std::vector<std::string> row = SplitRow(line);
    if (head.empty()) {
      head = row;
      continue;
    }
    if (head.size() < 3 || head[0] != "Placement" || head[1] != "State") continue;
    if (row[0].starts_with("---")) continue;
    if (!row[0].empty()) placement = row[0];
    for (size_t i = 2; i < row.size(); ++i) {
      cells.push_back({policy, placement, row[1], head.at(i), row[i]});
    }
  }
  return cells;
}

// ---- the cluster -----------------------------------------------------------------------------

TestClusterOptions OptionsOf(const Cell& cell) {
  TestClusterOptions options;
  options.world.nodes = 4;
  options.peers_per_node = 1;
  if (cell.placement == "data parallel") {
    options.world.data_parallelism = 2;
  } else if (cell.placement == "two peers") {
    options.peers_per_node = 2;
  } else if (cell.placement == "no peers") {
    options.world.nodes = 1;
  } else if (cell.placement == "`peer-ranks: []`") {
    options.names_no_peers = true;
  } else {
    EXPECT_EQ(cell.placement, "one peer");
  }
  options.hosts = options.world.nodes;
  options.save_bytes = kSave;
  options.capacity = static_cast<uint64_t>(std::stod(cell.size) * 10 + 0.5) * kSave / 10;
  EXPECT_TRUE(cell.policy == "refuse" || cell.policy == "thin") << cell.policy;
  options.on_pressure = cell.policy == "thin" ? OnPressure::kThin : OnPressure::kRefuse;
  return options;
}

class CellRun {
 public:
  explicit CellRun(const Cell& cell) : cell_(cell), options_(OptionsOf(cell)), cluster_(options_) {}

  std::string Outcome() {
    cluster_.StartJob();
    if (!cluster_.RunUntil([&] { return cluster_.AllReleased(); })) return "not released";
    SaveEverywhere(10);
    if (cell_.state == "first save") return OutcomeOfSaves(10);
    const bool begun = cluster_.AllCommitted(10);
    if (cell_.state == "next save") {
      SaveEverywhere(20);
    } else if (cell_.state == "two saves waiting") {
      SaveTwo();
    } else if (cell_.state == "ranks moved") {
      MoveRanks();
      return OutcomeOfRestore(10);
    } else if (cell_.state == "ranks moved, next save") {
      MoveRanks();
      if (!cluster_.AllReleased()) return "not restored";
      SaveEverywhere(20);
    } else if (cell_.state == "a node's memory lost") {
      LoseMemory();
      return OutcomeOfRestore(10);
    } else {
      return "unknown state";
    }
    if (begun) CheckOlder();
    return OutcomeOfSaves(cell_.state == "two saves waiting" ? 30 : 20);
  }

  // What holds in every cell.
  void CheckAlways() {
    EXPECT_TRUE(cluster_.ok());
    EXPECT_LE(cluster_.PeakUsed(), options_.capacity);
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      if (cluster_.AllReleased()) {
        EXPECT_TRUE(cluster_.client(i).failed.empty());
      }
    }
  }

  // After "unprotected" and "no write": nothing that is complete was lost.
  void CheckRestart(const std::string& outcome) {
    if (outcome != "unprotected" && outcome != "no write") return;
    Step newest = 0;
    for (const Step step : {10, 20, 30}) {
      if (IsWhole(step)) newest = step;
    }
    ASSERT_NE(newest, 0U);
    for (size_t i = 0; i < cluster_.hosts(); ++i) cluster_.StartClient(i, *cluster_.rank(i));
    ASSERT_TRUE(cluster_.RunUntil([&] { return cluster_.AllReleased(); })) << LogOf();
    for (size_t i = 0; i < cluster_.hosts(); ++i) EXPECT_EQ(cluster_.client(i).step, newest);
  }

  std::string LogOf() const { return tierkeep::LogOf(cluster_); }

 private:
  void SaveEverywhere(Step step) {
    cluster_.SaveAll(step);
    cluster_.Run(30s);
  }

  // The second is written everywhere but on one node before that one has written the first.
  void SaveTwo() {
    const size_t last = cluster_.hosts() - 1;
    for (const Step step : {20, 30}) {
      for (size_t i = 0; i < last; ++i) cluster_.SaveOn(i, step);
      cluster_.Run(100ms);
    }
    for (const Step step : {20, 30}) {
      cluster_.SaveOn(last, step);
      cluster_.Run(1s);
    }
    cluster_.Run(30s);
  }

  void MoveRanks() {
    const auto nodes = static_cast<Rank>(cluster_.hosts());
    for (Rank rank = 0; rank < nodes; ++rank) cluster_.StartClient(nodes - 1 - rank, rank);
    cluster_.Run(120s);
  }

  void LoseMemory() {
    const size_t host = cluster_.hosts() - 1;
    cluster_.KillAgent(host);
    cluster_.Run(1s);
    cluster_.LoseHost(host);
    cluster_.StartAgent(host);
    cluster_.StartJob();
    cluster_.Run(120s);
  }

  bool WriteFailed() {
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      if (cluster_.client(i).failed_writes > 0) return true;
    }
    return false;
  }

  // Each rank's own shard of the step is somewhere, good.
  bool IsWhole(Step step) {
    std::set<Rank> ranks;
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      for (const auto& [digest, copy] : cluster_.store(i)) {
        if (copy.good && copy.info.save().step() == step) ranks.insert(copy.info.rank());
      }
    }
    const uint32_t width = options_.world.nodes / options_.world.replicas();
    std::set<Rank> columns;
    for (const Rank rank : ranks) columns.insert(rank % width);
    return columns.size() == width;
  }

  size_t CopiesDemanded() const {
    if (options_.world.replicas() > 1) return options_.world.replicas();
    if (options_.world.nodes == 1 || cluster_.Logged("no in-cluster redundancy")) return 1;
    return 1 + *options_.peers_per_node;
  }

  // Equal replicas are each other's copies.
  bool HasAllCopies(Step step) {
    const uint32_t width = options_.world.nodes / options_.world.replicas();
    std::map<Rank, size_t> copies;
    for (size_t i = 0; i < cluster_.hosts(); ++i) {
      for (const auto& [digest, copy] : cluster_.store(i)) {
        if (copy.good && copy.info.save().step() == step) ++copies[copy.info.rank() % width];
      }
    }
    return copies.size() == width &&
           std::all_of(copies.begin(), copies.end(),
                       [&](const auto& entry) { return entry.second >= CopiesDemanded(); });
  }

  // While the newer one isn't committed, the older one is whole; with its copies, if none were
  // given up.
  void CheckOlder() {
    if (!cluster_.AllCommitted(10)) return;
    EXPECT_TRUE(IsWhole(10));
    if (!cluster_.Logged("--on-pressure=thin")) {
      EXPECT_TRUE(HasAllCopies(10));
    }
  }

  std::string OutcomeOfSaves(Step newest) {
    if (WriteFailed()) return "no write";
    if (!cluster_.AllCommitted(newest)) {
      EXPECT_TRUE(IsWhole(newest)) << "each rank has its own";
      EXPECT_TRUE(cluster_.Logged("lacks copies: node"));
      EXPECT_TRUE(cluster_.Logged("would do, this one has"));
      EXPECT_GE(cluster_.job_status()->problems_size(), 1);
      return "unprotected";
    }
    EXPECT_TRUE(HasAllCopies(newest));
    EXPECT_EQ(cluster_.job_status()->problems_size(), cluster_.Logged("no in-cluster") ? 1 : 0);
    if (cluster_.Logged("--on-pressure=thin")) return "thinned";
    if (cluster_.Logged("The job names no peers")) return "alone";
    return "committed";
  }

  std::string OutcomeOfRestore(Step step) {
    if (!cluster_.AllReleased()) {
      EXPECT_TRUE(IsWhole(step)) << "nothing is deleted";
      EXPECT_FALSE(cluster_.client(0).failed.empty());
      return "not restored";
    }
    if (!cluster_.client(0).step) {
      EXPECT_FALSE(IsWhole(step));
      return "lost";
    }
    for (size_t i = 0; i < cluster_.hosts(); ++i) EXPECT_EQ(cluster_.client(i).step, step);
    if (!cluster_.AllCommitted(step) || !HasAllCopies(step)) {
      EXPECT_TRUE(cluster_.Logged("lacks copies: node"));
      return "restored";
    }
    if (cluster_.Logged("now that ranks have moved")) return "gave way";
    if (cluster_.Logged("no room for the shard that the job goes on from")) return "gave way";
    if (cluster_.Logged("The job names no peers")) return "alone";
    return "rebuilt";
  }

  const Cell cell_;
  const TestClusterOptions options_;
  TestCluster cluster_;
};

class MemoryTable : public testing::TestWithParam<Cell> {};

TEST_P(MemoryTable, SaysWhatHappens) {
  const Cell& cell = GetParam();
  if (cell.outcome == "—") return;  // the state doesn't exist there
  CellRun run(cell);
  const std::string outcome = run.Outcome();
  EXPECT_EQ(outcome, cell.outcome)
      << cell.placement << ", " << cell.state << ", " << cell.size << ", " << cell.policy << "\n"
      << run.LogOf();
  run.CheckAlways();
  run.CheckRestart(outcome);
}

TEST(MemoryTableIsWhole, EveryPlacementStateSizeAndPolicy) {
  std::set<std::string> cells;
  for (const Cell& cell : ReadCells()) {
    cells.insert(cell.policy + "/" + cell.placement + "/" + cell.state + "/" + cell.size);
  }
  // 2 policies, 5 placements, 6 states, 4 sizes.
  EXPECT_EQ(cells.size(), 2U * 5 * 6 * 4);
}

std::string NameOf(const testing::TestParamInfo<Cell>& info) {
  const Cell& c = info.param;
  std::string name = c.policy + "_" + c.placement + "_" + c.state + "_" + c.size;
  for (char& letter : name) {
    if (!std::isalnum(static_cast<unsigned char>(letter))) letter = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cells, MemoryTable, testing::ValuesIn(ReadCells()), NameOf);

}  // namespace
}  // namespace tierkeep
