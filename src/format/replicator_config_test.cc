#include "format/replicator_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "format/format_testutil.h"

namespace tierkeep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::optional<std::string> NoEnvironment(std::string_view) { return std::nullopt; }

ParsedConfig MustParse(std::string_view text,
                       const EnvironmentLookup& environment = NoEnvironment) {
  auto parsed = ParseReplicatorConfig(text, environment);
  EXPECT_TRUE(parsed.ok()) << parsed.error().message();
  return parsed.ok() ? *parsed : ParsedConfig{};
}

std::string MustFail(std::string_view text) {
  const auto parsed = ParseReplicatorConfig(text, NoEnvironment);
  EXPECT_FALSE(parsed.ok()) << text;
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.error().code(), Code::kInvalidArgument);
  EXPECT_THAT(parsed.error().message(), HasSubstr("replicator.yaml: "));
  EXPECT_THAT(parsed.error().message(), Not(HasSubstr("\n")));
  return parsed.error().message();
}

// A good file with `change` as its last lines.
std::string With(std::string_view change) {
  return "job-name: j\nframework: orbax\nnode-rank: 1\nnodes: 4\npeers-per-node: 1\n"
         "backup-interval-minutes: 30\n" +
         std::string(change);
}

// The same without the line that begins with `key`, and with `change` at the end.
std::string Without(std::string_view key, std::string_view change = "") {
  const std::string whole = "\n" + With("");
  const size_t start = whole.find("\n" + std::string(key)) + 1;
  return whole.substr(1, start - 1) + whole.substr(whole.find('\n', start) + 1) +
         std::string(change);
}

// ---- what the published clients write ----------------------------------------------------------

TEST(ReplicatorConfig, OrbaxTwoSlices) {
  // No line feed at the end.
  const ParsedConfig parsed = MustParse(
      "job-name: probe-job\nframework: orbax\nassume-data-parallelism: 2\nnode-rank: 1\nnodes: 2\n"
      "peer-ranks: [0]\nbackup-interval-minutes: 30");
  JobConfig expected;
  expected.job = "probe-job";
  expected.rank = 1;
  expected.world = {Framework::kOrbax, 2, 1, 2};
  expected.peer_ranks = {0};
  expected.backup_interval_minutes = 30;
  EXPECT_EQ(parsed.config, expected);
  EXPECT_THAT(parsed.warnings, IsEmpty());
}

TEST(ReplicatorConfig, B6_OrbaxOneSliceWithStepInterval) {
  const ParsedConfig parsed = MustParse(
      "job-name: run\nframework: orbax\nassume-data-parallelism: 1\nnode-rank: 0\nnodes: 1\n"
      "peer-ranks: []\nbackup-interval-steps: 50");
  EXPECT_EQ(parsed.config.world, (WorldShape{Framework::kOrbax, 1, 1, 1}));
  ASSERT_TRUE(parsed.config.peer_ranks.has_value());
  EXPECT_THAT(*parsed.config.peer_ranks, IsEmpty());
  EXPECT_EQ(parsed.config.backup_interval_steps, 50u);
  EXPECT_EQ(parsed.config.backup_interval_minutes, std::nullopt);
  EXPECT_THAT(parsed.warnings, IsEmpty());
}

TEST(ReplicatorConfig, MaxTextWithWorkersAndManySlices) {
  const ParsedConfig parsed = MustParse(
      "job-name: mt\nframework: orbax\nassume-data-parallelism: 4\nnode-rank: 5\nnodes: 16\n"
      "workers-per-node: 1\npeer-ranks: [1, 9, 13]\nbackup-interval-minutes: 60");
  EXPECT_THAT(*parsed.config.peer_ranks, ElementsAre(1, 9, 13));
  EXPECT_EQ(parsed.config.world.replicas(), 4u);
}

TEST(ReplicatorConfig, PyTorch) {
  // As PyYAML's dump writes the client's map, with peer-ranks last and as a block list.
  const ParsedConfig parsed = MustParse(
      "job-name: nemo-job\nframework: pytorch.distributed\nnode-rank: 0\nnodes: 2\n"
      "peers-per-node: 1\nbackup-interval-minutes: 30\npeer-ranks:\n- 1\n");
  EXPECT_EQ(parsed.config.world, (WorldShape{Framework::kPytorchDistributed, 2, 1, 0}));
  EXPECT_THAT(*parsed.config.peer_ranks, ElementsAre(1));
  EXPECT_EQ(parsed.config.peers_per_node, 1u);
  EXPECT_THAT(parsed.warnings,
              ElementsAre("Both peer-ranks and peers-per-node are given: peer-ranks holds."));
}

TEST(ReplicatorConfig, PyTorchOnOneNode) {
  const ParsedConfig parsed = MustParse(
      "job-name: '123'\nframework: pytorch.distributed\nnode-rank: 0\nnodes: 1\n"
      "peers-per-node: 1\nbackup-interval-minutes: 30\n");
  EXPECT_EQ(parsed.config.job, "123");
  EXPECT_THAT(parsed.warnings, ElementsAre(HasSubstr("only 0 other nodes")));
}

TEST(ReplicatorConfig, EveryOtherKey) {
  const ParsedConfig parsed = MustParse(
      "# a comment\n---\nframework: pytorch\nworkers-per-node: 8\nnodes: 4\nnode-rank: \"3\"\n"
      "job-name: J_1.x\npeers-per-node: 2\nmaster-port: 5000\nmaster: tcp://host.example:5000\n"
      "some-new-key: {a: [1, {b: c}]}\nbackup-interval-minutes: 45\n...\n");
  EXPECT_EQ(parsed.config.world, (WorldShape{Framework::kPytorch, 4, 8, 0}));
  EXPECT_EQ(parsed.config.rank, 3u);
  EXPECT_EQ(parsed.config.master_port, 5000);
  EXPECT_EQ(parsed.config.master, "tcp://host.example:5000");
  EXPECT_EQ(parsed.config.peers_per_node, 2u);
}

// ---- types -------------------------------------------------------------------------------------

TEST(ReplicatorConfig, B15JobNamesStayText) {
  for (const char* name : {"0123", "no", "2024-01-01", "1e3", "true", "0x10", "1_000", "off"}) {
    EXPECT_EQ(MustParse(Without("job-name", "job-name: " + std::string(name))).config.job, name);
  }
  EXPECT_THAT(MustFail(Without("job-name", "job-name: null")), HasSubstr("job-name"));
  EXPECT_EQ(MustParse(Without("job-name", "job-name: 'null'")).config.job, "null");
}

TEST(ReplicatorConfig, NumbersArePlainDecimals) {
  EXPECT_EQ(MustParse(Without("node-rank", "node-rank: 3")).config.rank, 3u);
  EXPECT_EQ(MustParse(Without("node-rank", "node-rank: '3'")).config.rank, 3u);
  for (const char* bad : {"0x1", "1.0", "01", "+1", "-1", "1_0", "one", "''", "' 1'", "1e0", "true",
                          "99999999999999999999", "1 2", "0o1"}) {
    EXPECT_THAT(MustFail(Without("node-rank", "node-rank: " + std::string(bad))),
                HasSubstr("it must be a whole number in plain decimal digits"))
        << bad;
  }
  EXPECT_EQ(
      MustParse(Without("backup", "backup-interval-minutes: 45.00")).config.backup_interval_minutes,
      45u);
  MustFail(Without("backup", "backup-interval-minutes: 45.5"));
  MustFail(Without("backup", "backup-interval-minutes: 45."));
}

// ---- rules -------------------------------------------------------------------------------------

struct BadFile {
  std::string text;
  std::string message;  // all of it
};

TEST(ReplicatorConfig, ErrorsNameKeyValueAndRule) {
  const std::string file = "replicator.yaml: ";
  const BadFile cases[] = {
      {Without("job-name"), "job-name '': it must be given"},
      {Without("framework"), "framework '': it must be given"},
      {Without("nodes"), "nodes '': it must be given"},
      {Without("node-rank"), "node-rank '': it must be given"},
      {Without("node-rank", "node-rank:\n"), "node-rank '': it must be given"},
      {Without("framework", "framework: Orbax\n"),
       "framework 'Orbax': it must be orbax, pytorch.distributed or pytorch"},
      {Without("node-rank", "node-rank: 4\n"), "node-rank '4': it must be below nodes, which is 4"},
      {Without("nodes", "nodes: 0\n"), "nodes '0': it must be at least 1"},
      {Without("nodes", "nodes: 2000000\n"), "nodes '2000000': it must be at most 1048576"},
      {With("workers-per-node: 0\n"), "workers-per-node '0': it must be at least 1"},
      {With("workers-per-node: 2\n"),
       "workers-per-node '2': it must be 1 with framework orbax, which saves one directory a node"},
      {With("assume-data-parallelism: 0\n"), "assume-data-parallelism '0': it must be at least 1"},
      {With("assume-data-parallelism: 3\n"),
       "assume-data-parallelism '3': it must divide nodes, which is 4"},
      {With("assume-data-parallelism: 8\n"),
       "assume-data-parallelism '8': it must divide nodes, which is 4"},
      {With("peer-ranks: [0, 4]\n"), "peer-ranks '4': it must be below nodes, which is 4"},
      {With("peer-ranks: [0, 1]\n"), "peer-ranks '1': it must not be the node's own rank"},
      {With("peer-ranks: [2, 0, 2]\n"), "peer-ranks '2': it must be given once"},
      {With("peer-ranks: [-1]\n"),
       "peer-ranks '-1': it must be a whole number in plain decimal digits"},
      {With("peer-ranks: 2\n"), "peer-ranks '(not-shown)': it must be a list of ranks"},
      {With("peer-ranks: {a: 2}\n"), "peer-ranks '(not-shown)': it must be a list of ranks"},
      {With("peer-ranks: [[2]]\n"), "peer-ranks '(not-shown)': it must be a list of ranks"},
      {With("peer-ranks: [~]\n"), "peer-ranks '(not-shown)': it must be a list of ranks"},
      {Without("peers-per-node"),
       "peer-ranks or peers-per-node must be given unless assume-data-parallelism is above 1"},
      {Without("peers-per-node", "assume-data-parallelism: 1\n"),
       "peer-ranks or peers-per-node must be given unless assume-data-parallelism is above 1"},
      {With("backup-interval-steps: 10\n"),
       "backup-interval-steps '10': it must not be given beside backup-interval-minutes, which "
       "is 30"},
      {Without("backup"), "backup-interval-minutes or backup-interval-steps must be given"},
      {Without("backup", "backup-interval-minutes:\n"),
       "backup-interval-minutes or backup-interval-steps must be given"},
      {Without("backup", "backup-interval-minutes: 0\n"),
       "backup-interval-minutes '0': it must be at least 1"},
      {Without("backup", "backup-interval-steps: 0\n"),
       "backup-interval-steps '0': it must be at least 1"},
      {With("master-port: 0\n"), "master-port '0': it must be at least 1"},
      {With("master-port: 65536\n"), "master-port '65536': it must be at most 65535"},
      {With("master: http://h:1\n"), "master 'http://h:1': it must have the form tcp://host:port"},
      {With("master: tcp://h\n"), "master 'tcp://h': it must have the form tcp://host:port"},
      {With("master: tcp://-h:1\n"), "master 'tcp://-h:1': it must have the form tcp://host:port"},
      {With("master: tcp://$(x):1\n"),
       "master 'tcp://$(x):1': it must have the form tcp://host:port"},
      {With("nodes: 5\n"), "line 7: key 'nodes' is given twice"},
      {"", "it is empty"},
      {"\n# nothing\n", "it is empty"},
      {"just text", "line 1: it must be a map of keys and values"},
      {"- a\n- b\n", "line 1: it must be a map of keys and values"},
      {With("") + "---\nnodes: 5\n", "it has more than one document"},
      {With("x: *a\n"), "line 7: it is not valid YAML"},
      {With("x: &a 1\n"), "line 7: anchors are not allowed"},
      {With("x: &a [1]\ny: *a\n"), "line 7: anchors are not allowed"},
      {With("x: !!int 1\n"), "line 7: tags are not allowed"},
      {With("x: !!python/object:os.system []\n"), "line 7: tags are not allowed"},
      {With("[a, b]: c\n"), "line 7: a key must be text"},
      {With("x: [1, 2\n"), "line 8: it is not valid YAML"},
      {With("x: &a [1, 2\n"), "line 7: anchors are not allowed"},
      {With("x: [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]\n"), "line 7: it is nested too deeply"},
  };
  for (const BadFile& c : cases) EXPECT_EQ(MustFail(c.text), file + c.message) << c.text;
}

TEST(ReplicatorConfig, B15JobNamesOfAnotherForm) {
  for (const std::string& bad :
       {std::string("a/b"), std::string(".."), std::string("'a b'"), std::string("'*'"),
        std::string("-x"), std::string("''"), std::string(129, 'x'), std::string("\"a\\0b\"")}) {
    EXPECT_THAT(MustFail(Without("job-name", "job-name: " + bad)),
                HasSubstr("it must begin with a letter or digit"));
  }
}

TEST(ReplicatorConfig, D12ValuesAreEscapedAndShortened) {
  const std::string forged =
      MustFail(Without("job-name", "job-name: \"x\\n2026-01-01 INF committed\\e[31m\"\n"));
  EXPECT_THAT(forged, HasSubstr("x\\x0a2026"));
  EXPECT_THAT(forged, Not(HasSubstr("\x1b")));
  EXPECT_LT(MustFail(Without("job-name", "job-name: " + std::string(5000, 'x'))).size(), 300u);
  EXPECT_LT(
      MustFail(With(std::string(5000, 'k') + ": 1\n" + std::string(5000, 'k') + ": 1\n")).size(),
      300u);
}

TEST(ReplicatorConfig, D11ContentsAreNotQuoted) {
  for (const char* text : {"root:x:0:0:secret:/root\nfoo: : bar", "secret", "a: \"secret\\q\"",
                           "[secret", "? secret", "%secret\n---\na: b", "secret: [secret"}) {
    EXPECT_THAT(MustFail(text), Not(HasSubstr("secret"))) << text;
  }
}

TEST(ReplicatorConfig, Warnings) {
  EXPECT_THAT(MustParse(Without("backup", "backup-interval-minutes: 29")).warnings,
              ElementsAre("backup-interval-minutes is 29: at least 30 are advised."));
  EXPECT_THAT(MustParse(Without("peers-per-node", "peers-per-node: 9")).warnings,
              ElementsAre(HasSubstr("only 3 other nodes")));
  const ParsedConfig replicas = MustParse(Without("peers-per-node", "assume-data-parallelism: 2"));
  EXPECT_THAT(replicas.warnings, IsEmpty());
  EXPECT_EQ(replicas.config.peer_ranks, std::nullopt);
}

// Rank 0's interval holds for all: which one a file has doesn't matter to its other rules.
TEST(ReplicatorConfig, B6EitherIntervalKey) {
  const ParsedConfig steps = MustParse(Without("backup", "backup-interval-steps: 50\n"));
  EXPECT_EQ(steps.config.backup_interval_steps, 50u);
  EXPECT_EQ(steps.config.backup_interval_minutes, std::nullopt);
  EXPECT_THAT(steps.warnings, IsEmpty());
  const ParsedConfig minutes = MustParse(With("backup-interval-steps:\n"));
  EXPECT_EQ(minutes.config.backup_interval_minutes, 30u);
  EXPECT_EQ(minutes.config.backup_interval_steps, std::nullopt);
}

TEST(ReplicatorConfig, OptionalKeysWithoutValueCountAsAbsent) {
  const ParsedConfig parsed = MustParse(
      With("peer-ranks: null\nassume-data-parallelism: ~\nworkers-per-node:\nmaster: ''\n"));
  EXPECT_EQ(parsed.config.peer_ranks, std::nullopt);
  EXPECT_EQ(parsed.config.world.data_parallelism, 0u);
  EXPECT_EQ(parsed.config.world.workers_per_node, 1u);
  EXPECT_EQ(parsed.config.master, "");
}

TEST(ReplicatorConfig, A11_PartitionsDivideTheNodes) {
  for (int nodes = 1; nodes <= 12; ++nodes) {
    for (int partitions = 0; partitions <= 14; ++partitions) {
      const auto parsed = ParseReplicatorConfig(
          fmt::format("job-name: a\nframework: orbax\nnode-rank: 0\nnodes: {}\npeers-per-node: 1\n"
                      "assume-data-parallelism: {}\nbackup-interval-minutes: 30\n",
                      nodes, partitions),
          {});
      EXPECT_EQ(parsed.ok(), partitions > 0 && nodes % partitions == 0)
          << nodes << " nodes, " << partitions << " partitions";
    }
  }
}

TEST(ReplicatorConfig, B13TextCutShortIsRefusedOrMissesAKey) {
  const std::string whole =
      "job-name: nemo-job\nframework: pytorch.distributed\nnode-rank: 0\nnodes: 2\n"
      "peers-per-node: 1\nbackup-interval-minutes: 30\n";
  for (size_t length = 0; length < whole.find(" 30"); ++length) {
    EXPECT_FALSE(ParseReplicatorConfig(whole.substr(0, length), NoEnvironment).ok()) << length;
  }
}

// ---- environment -------------------------------------------------------------------------------

TEST(ReplicatorConfig, D11OnlyTheFixedListIsExpanded) {
  std::vector<std::string> asked;
  const EnvironmentLookup environment = [&](std::string_view name) -> std::optional<std::string> {
    asked.emplace_back(name);
    if (name == "JOBSET_NAME") return "set";
    if (name == "NODE_RANK") return "2";
    if (name == "NNODES") return "4";
    if (name == "HOSTNAME") return "$JOBSET_NAME";  // isn't expanded again
    if (name == "POD_NAME") return std::nullopt;
    return "leaked";
  };
  const auto parse = [&](const std::string& job) {
    return ParseReplicatorConfig(
        "job-name: \"" + job +
            "\"\nframework: orbax\nnode-rank: $NODE_RANK\nnodes: ${NNODES}\n"
            "peer-ranks: [0, \"${NODE_RANK}1\"]\nbackup-interval-minutes: 30",
        environment);
  };
  // 21 is above nodes: the list was expanded too.
  EXPECT_THAT(parse("j").error().message(), HasSubstr("peer-ranks '21'"));

  const auto job = [&](const std::string& name) {
    return ParseReplicatorConfig(Without("job-name", "job-name: \"" + name + "\""), environment);
  };
  EXPECT_EQ(job("${JOBSET_NAME}-x")->config.job, "set-x");
  EXPECT_EQ(job("a.$JOBSET_NAME.b")->config.job, "a.set.b");
  for (const char* name : {"x$HOME", "x${SECRET}", "x$JOBSET_NAME_X", "x$", "x${", "x${JOBSET_NAME",
                           "x$POD_NAME", "x$$", "x${}", "x${ JOBSET_NAME}", "x$HOSTNAME"}) {
    const auto parsed = job(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_THAT(parsed.error().message(), HasSubstr("job-name 'x$")) << name;
    EXPECT_THAT(parsed.error().message(), Not(HasSubstr("leaked")));
  }
  EXPECT_THAT(asked, Not(::testing::Contains("SECRET")));
  EXPECT_THAT(asked, Not(::testing::Contains("HOME")));
}

TEST(ReplicatorConfig, KeysAreNotExpanded) {
  const EnvironmentLookup environment = [](std::string_view) { return std::string("nodes"); };
  EXPECT_TRUE(ParseReplicatorConfig(With("$JOB_NAME: 77\n"), environment).ok());
}

TEST(ReplicatorConfig, ExpansionIsBounded) {
  const EnvironmentLookup environment = [](std::string_view) { return std::string(1000, 'x'); };
  std::string many;
  for (int i = 0; i < 5000; ++i) many += "$HOSTNAME";
  const auto parsed = ParseReplicatorConfig(Without("job-name", "job-name: " + many), environment);
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(parsed.error().message(), HasSubstr("at most 4096 bytes"));
}

// ---- hostile texts -----------------------------------------------------------------------------

TEST(ReplicatorConfig, SizeLimit) {
  std::string text = With("# ");
  text.resize(64 << 10, 'x');
  EXPECT_TRUE(ParseReplicatorConfig(text, NoEnvironment).ok());
  EXPECT_THAT(MustFail(text + "x"), HasSubstr("65537 bytes, more than 65536"));
}

TEST(ReplicatorConfig, BombsAreRefused) {
  MustFail(std::string(60000, '['));
  MustFail(std::string(60000, '{'));
  MustFail(With("x: " + std::string(30000, '[')));
  std::string dashes = With("x:\n");
  for (int i = 0; i < 300; ++i) dashes += std::string(i, ' ') + "-\n";
  MustFail(dashes);
  std::string laughs = With("a: &a [x,x]\n");
  for (char c = 'b'; c < 'z'; ++c) {
    laughs += fmt::format("{0}: &{0} [*{1},*{1},*{1}]\n", c, static_cast<char>(c - 1));
  }
  EXPECT_THAT(MustFail(laughs), HasSubstr("anchors are not allowed"));
}

TEST(ReplicatorConfig, AnyBytesGiveAnAnswer) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  const std::string pieces[] = {"job-name", ": ",          "\n",   "- ",    "[",
                                "]",        "{",           "}",    "'",     "\"",
                                "&a ",      "*a",          "!!x ", "nodes", "$NNODES",
                                "|",        ">",           "? ",   "---\n", "%",
                                "\t",       "#",           "1",    "  ",    std::string("\0", 1),
                                "\xff",     "\xef\xbb\xbf"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    if (prng.Chance(1, 3)) {
      text = prng.Bytes(prng.Below(200));
    } else if (prng.Chance(1, 2)) {
      for (uint64_t n = prng.Below(60); n > 0; --n) text += pieces[prng.Below(std::size(pieces))];
    } else {
      text = With("peer-ranks: [0, 2]\n");
      for (uint64_t n = 1 + prng.Below(4); n > 0; --n) {
        text[prng.Below(text.size())] = static_cast<char>(prng.Next());
      }
    }
    const auto parsed = ParseReplicatorConfig(text, NoEnvironment);
    if (!parsed.ok()) {
      ASSERT_EQ(parsed.error().code(), Code::kInvalidArgument);
      continue;
    }
    // What is accepted keeps the rules.
    const JobConfig& c = parsed->config;
    ASSERT_TRUE(CheckWorldShape(c.world).ok());
    ASSERT_LT(c.rank, c.world.nodes);
    for (const Rank peer : c.peer_ranks.value_or(std::vector<Rank>())) {
      ASSERT_TRUE(peer < c.world.nodes && peer != c.rank);
    }
  }
}

}  // namespace
}  // namespace tierkeep
