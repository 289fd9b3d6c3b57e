#include "format/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "format/format_testutil.h"
#include "format/message_testutil.h"
#include "format/record.h"

namespace tierkeep {
namespace {

using control::Envelope;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kJob = MessageMaker::kJob;
const WorldShape kWorld = MessageMaker::World();

using Maker = MessageMaker;

Maker MakerOf(uint64_t seed) { return Maker{Prng(seed)}; }

// ---- conversions -------------------------------------------------------------------------------

TEST(Messages, ValuesSurviveTheWire) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  for (int i = 0; i < 200; ++i) {
    const WorldShape world = RandomWorld(&prng);
    const SaveKey save{RandomRun(&prng), prng.Next(), static_cast<uint32_t>(1 + prng.Below(9))};
    const AttemptId attempt{RandomFixed<Id128>(&prng), RandomFixed<Id128>(&prng),
                            1 + prng.Below(9)};
    const ShardSummary shard = RandomShard(&prng, kJob, save, world, 0, 0);
    ASSERT_EQ(FromProto(ToProto(save.run)), save.run);
    ASSERT_EQ(FromProto(ToProto(attempt)), attempt);
    ASSERT_EQ(FromProto(ToProto(save)), save);
    ASSERT_EQ(FromProto(ToProto(world)), world);
    ASSERT_EQ(FromProto(ToProto(shard)), shard);
  }
  EXPECT_EQ(FromProto(ToProto(RunId{})), RunId{});
  EXPECT_EQ(ToProto(RunId{}).ByteSizeLong(), 0u);
  EXPECT_EQ(FromProto(ToProto(AttemptId{})), AttemptId{});
}

TEST(Messages, SummaryOfAManifest) {
  Prng prng(5);
  const Manifest m = RandomManifest(&prng);
  const std::string encoded = *EncodeManifest(m);
  const ShardSummary s = SummaryOf(m, encoded);
  EXPECT_EQ(s.digest, ManifestDigest(encoded));
  EXPECT_EQ(s.identity, m.identity);
  EXPECT_EQ(s.logical, m.logical);
  EXPECT_EQ(s.volume_name, VolumeDataName(m, s.digest));
  EXPECT_EQ(s.bytes, m.TotalBytes());
  EXPECT_EQ(s.manifest_bytes, encoded.size());
}

TEST(Messages, SettingsCarryWhatAllShareAndKeepWhatIsOwn) {
  JobConfig rank0;
  rank0.job = kJob;
  rank0.world = kWorld;
  rank0.peers_per_node = 2;
  rank0.backup_interval_steps = 50;
  rank0.peer_ranks = {1};
  JobConfig own = rank0;
  own.rank = 3;
  own.peer_ranks = {2};
  own.peers_per_node.reset();
  own.backup_interval_steps.reset();
  own.backup_interval_minutes = 30;
  own.master = "tcp://h:1";
  JobConfig expected = rank0;
  expected.rank = 3;
  expected.peer_ranks = {2};
  expected.master = "tcp://h:1";
  EXPECT_EQ(WithSettings(own, SettingsOf(rank0)), expected);
  EXPECT_EQ(WithSettings(own, SettingsOf(own)), own);
  rank0.peer_ranks = std::vector<Rank>();
  EXPECT_TRUE(SettingsOf(rank0).has_peer_ranks());  // an empty list isn't "none given"
}

// ---- checked decoding --------------------------------------------------------------------------

TEST(Messages, EveryKindIsAcceptedAndUnchanged) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Maker maker = MakerOf(seed);
  std::set<int> kinds;
  for (const Envelope& e : maker.All()) {
    kinds.insert(e.body_case());
    const auto encoded = EncodeEnvelope(e);
    ASSERT_TRUE(encoded.ok()) << encoded.error().message();
    const auto decoded = DecodeEnvelope(*encoded);
    ASSERT_TRUE(decoded.ok()) << decoded.error().message();
    ASSERT_EQ(decoded->SerializeAsString(), e.SerializeAsString());
  }
  // All of the oneof: a new kind needs its check and its place in All().
  EXPECT_EQ(static_cast<int>(kinds.size()),
            Envelope::descriptor()->FindOneofByName("body")->field_count());
}

struct BrokenMessage {
  const char* expected;  // within the error
  std::function<Envelope(Maker&)> make;
};

// Shorthand: a maker's message, changed.
#define TK_BROKEN(text, from, change) \
  {                                   \
    text, [](Maker& maker) {          \
      Envelope e = maker.from();      \
      change;                         \
      return e;                       \
    }                                 \
  }

void ExpectRefused(const std::vector<BrokenMessage>& cases) {
  for (const BrokenMessage& c : cases) {
    Maker maker = MakerOf(1);
    const Envelope e = c.make(maker);
    const auto encoded = EncodeEnvelope(e);
    EXPECT_FALSE(encoded.ok()) << c.expected;
    const auto decoded = DecodeEnvelope(e.SerializeAsString());
    ASSERT_FALSE(decoded.ok()) << c.expected;
    EXPECT_THAT(decoded.error().message(), HasSubstr(c.expected));
    EXPECT_EQ(decoded.error().code(), Code::kInvalidArgument);
  }
}

TEST(Messages, BrokenEnvelopesAndJoins) {
  ExpectRefused({
      TK_BROKEN("no job name", Prepared, e.set_job("../x")),
      TK_BROKEN("sender 'a\\x20b' is no node name", Prepared, e.set_sender("a b")),
      TK_BROKEN("message: run has 15 bytes", Prepared,
                e.mutable_run()->set_nonce(std::string(15, 'x'))),
      TK_BROKEN("run is all zero", Prepared, e.mutable_run()->set_nonce(std::string(16, '\0'))),
      TK_BROKEN("without a sequence", Prepared, e.mutable_run()->set_sequence(0)),
      TK_BROKEN("isn't the sender", Join, e.set_sender("node-z")),
      TK_BROKEN("join: rank 4 is too high", Join, e.mutable_join()->set_rank(4)),
      TK_BROKEN("attempt has no counter", Join, e.mutable_join()->clear_attempt()),
      TK_BROKEN("attempt.boot has 0 bytes", Join,
                e.mutable_join()->mutable_attempt()->clear_boot()),
      TK_BROKEN("job is 'job-2'", Join, e.mutable_join()->mutable_settings()->set_job("job-2")),
      TK_BROKEN("do not divide", Join,
                e.mutable_join()->mutable_settings()->mutable_world()->set_data_parallelism(3)),
      TK_BROKEN("world.framework is 9", Join,
                e.mutable_join()->mutable_settings()->mutable_world()->set_framework(9)),
      TK_BROKEN("peer_ranks has 2 twice", Join,
                e.mutable_join()->mutable_settings()->add_peer_ranks(2)),
      TK_BROKEN("without has_peer_ranks", Join,
                e.mutable_join()->mutable_settings()->set_has_peer_ranks(false)),
      TK_BROKEN("data.port is no port", Join, e.mutable_join()->mutable_data()->set_port(65536)),
      TK_BROKEN("data.host is no host", Join, e.mutable_join()->mutable_data()->set_host("-x")),
      TK_BROKEN("data.host is no host", Join, e.mutable_join()->mutable_data()->set_host("a;b")),
      TK_BROKEN("data_token has 3 bytes", Join, e.mutable_join()->set_data_token("abc")),
      TK_BROKEN("released without a choice", Join, e.mutable_join()->clear_restored()),
      TK_BROKEN("a member tells of a seat", Join, e.mutable_join()->mutable_seat()->set_rank(1)),
      TK_BROKEN("staged is of another run", Join, e.mutable_join()->clear_in_run()),
      TK_BROKEN("staged is of another run", Join, e.mutable_join()->set_holder(true)),
      TK_BROKEN("previous_nodes '' is no node", Join, e.mutable_join()->add_previous_nodes("")),
      TK_BROKEN("agent_boot has 1", Join, e.mutable_join()->set_agent_boot("x")),
      TK_BROKEN("link.agent has 1", Join, e.mutable_join()->mutable_link()->set_agent("x")),
      TK_BROKEN("unreadable.digest has 5", Join,
                e.mutable_join()->mutable_inventory()->mutable_unreadable(0)->set_digest("12345")),
  });
}

TEST(Messages, BrokenShards) {
  const auto shard = [](Envelope& e) {
    return e.mutable_join()->mutable_inventory()->mutable_shards(0);
  };
  const std::pair<const char*, std::function<void(control::ShardInfo*)>> cases[] = {
      {"shard.digest has 31 bytes", [](auto* s) { s->mutable_digest()->pop_back(); }},
      {"shard.digest is all zero", [](auto* s) { s->set_digest(std::string(32, '\0')); }},
      {"job is ''", [](auto* s) { s->clear_job(); }},
      {"save.run is missing", [](auto* s) { s->mutable_save()->clear_run(); }},
      {"save.occurrence is 0", [](auto* s) { s->mutable_save()->set_occurrence(0); }},
      {"shard.rank 4 is too high", [](auto* s) { s->set_rank(4); }},
      {"shard.worker 1 is too high", [](auto* s) { s->set_worker(1); }},
      {"shard.ordinal is 0", [](auto* s) { s->set_ordinal(0); }},
      {"shard.logical has 3 bytes", [](auto* s) { s->set_logical("abc"); }},
      {"shard.volume_name", [](auto* s) { s->set_volume_name("../../x"); }},
      {"shard.manifest_bytes is 0", [](auto* s) { s->set_manifest_bytes(0); }},
      {"nodes are not within", [](auto* s) { s->mutable_world()->set_nodes(1u << 30); }},
      {"world.framework is 0", [](auto* s) { s->clear_world(); }},
  };
  for (const auto& [expected, change] : cases) {
    Maker maker = MakerOf(2);
    Envelope e = maker.Join();
    change(shard(e));
    const auto decoded = DecodeEnvelope(e.SerializeAsString());
    ASSERT_FALSE(decoded.ok()) << expected;
    EXPECT_THAT(decoded.error().message(), HasSubstr(expected));
  }
}

TEST(Messages, BrokenGenerationsAndOrders) {
  ExpectRefused({
    TK_BROKEN("generation has 3 shards, not 4", Commit,
              e.mutable_commit()->mutable_generation()->mutable_shards()->RemoveLast()),
        TK_BROKEN("generation's shard 0 is of rank 1", Commit,
                  e.mutable_commit()->mutable_generation()->mutable_shards(0)->set_rank(1)),
        TK_BROKEN(
            "shard 2 is of another save", Commit,
            e.mutable_commit()->mutable_generation()->mutable_shards(2)->mutable_save()->set_step(
                1)),
        TK_BROKEN("save_number is 0", Commit,
                  e.mutable_commit()->mutable_generation()->set_save_number(0)),
        TK_BROKEN("isn't committed", Commit,
                  e.mutable_commit()->mutable_generation()->set_committed(false)),
        TK_BROKEN("keep has 1 bytes", Commit, e.mutable_commit()->add_keep("x")),
        TK_BROKEN("parent's save number", Commit,
                  e.mutable_commit()->mutable_generation()->clear_parent_run();
                  e.mutable_commit()->mutable_generation()->set_parent_save_number(3)),
        TK_BROKEN("choice.decision is 0", Restore,
                  e.mutable_restore()->mutable_choice()->set_decision(0)),
        TK_BROKEN("none and names a generation", Restore,
                  e.mutable_restore()->mutable_choice()->set_none(true)),
        TK_BROKEN("job is ''", Restore, e.mutable_restore()->mutable_choice()->clear_generation()),
        TK_BROKEN("wanted without a choice", Restore,
                  e.mutable_restore()->mutable_choice()->clear_generation();
                  e.mutable_restore()->mutable_choice()->set_none(true)),
        TK_BROKEN("sources.nodes", Restore,
                  e.mutable_restore()->mutable_wanted(0)->add_nodes("a\nb")),
        TK_BROKEN("bad_shards", Prepared, e.mutable_restore_prepared()->add_bad_shards("")),
        TK_BROKEN("decision is 0", Prepared, e.mutable_restore_prepared()->set_decision(0)),
        TK_BROKEN("named twice", RunStart,
                  e.mutable_run_start()->mutable_members(1)->set_node("node-0")),
        TK_BROKEN("has rank 0, taken", RunStart,
                  e.mutable_run_start()->mutable_members(1)->set_rank(0)),
        TK_BROKEN("epoch is 0", RunStart, e.mutable_run_start()->set_epoch(0)),
        TK_BROKEN("run is missing", RunStart, e.mutable_run_start()->clear_run()),
  });
}

TEST(Messages, BrokenSaves) {
  const std::pair<const char*, std::function<void(control::SaveStaged*)>> cases[] = {
      {"no shard", [](auto* m) { m->clear_shards(); }},
      {"2 shards, not 1",
       [](auto* m) {
         // A second worker of a world that has one.
         *m->add_shards() = m->shards(0);
         m->mutable_shards(1)->set_worker(1);
       }},
      {"shard 0 is of another", [](auto* m) { m->mutable_save()->set_step(101); }},
      {"shard 0 is of another", [](auto* m) { m->set_ordinal(4); }},
      {"ordinal is 0", [](auto* m) { m->set_ordinal(0); }},
  };
  for (const auto& [expected, change] : cases) {
    Maker maker = MakerOf(3);
    Envelope e = maker.Empty();
    *e.mutable_save_staged() = maker.Staged();
    change(e.mutable_save_staged());
    const auto decoded = DecodeEnvelope(e.SerializeAsString());
    ASSERT_FALSE(decoded.ok()) << expected;
    if (std::string_view(expected) == "2 shards, not 1") continue;  // the worker is refused first
    EXPECT_THAT(decoded.error().message(), HasSubstr(expected));
  }
}

TEST(Messages, BrokenComparisons) {
  const auto divergence = [](Maker& maker) {
    Envelope e = maker.Empty();
    *e.mutable_divergence() = maker.Divergence();
    return e;
  };
  const auto broken = [&](const char* expected, const auto& change) {
    Maker maker = MakerOf(4);
    Envelope e = divergence(maker);
    change(e.mutable_divergence(), e.mutable_divergence()->mutable_odd(0));
    EXPECT_THAT(CheckEnvelope(e).error().message(), HasSubstr(expected));
  };
  broken("0 odd replicas", [](auto* m, auto*) { m->clear_odd(); });
  broken("1 odd replicas of 0", [](auto* m, auto*) { m->clear_odd_total(); });
  broken("rank too high", [](auto*, auto* odd) { odd->set_rank(1u << 30); });
  broken("odd.node", [](auto*, auto* odd) { odd->clear_node(); });
  broken("1 differences of 0", [](auto*, auto* odd) { odd->clear_total(); });
  broken("65 differences", [](auto*, auto* odd) {
    odd->set_total(1000);
    for (int i = 0; i < 64; ++i) odd->add_differences("x");
  });
  Maker maker = MakerOf(4);
  Envelope e = maker.Empty();
  *e.mutable_compare() = maker.Compare();
  ASSERT_TRUE(CheckEnvelope(e).ok());
  e.mutable_compare()->mutable_own()->clear_logical();
  EXPECT_THAT(CheckEnvelope(e).error().message(), HasSubstr("without a logical digest"));
}

TEST(Messages, ARunThatGoesOnMayMissMembers) {
  Maker maker = MakerOf(4);
  Envelope e = maker.RunStart();
  e.mutable_run_start()->mutable_members()->DeleteSubrange(0, 1);
  e.mutable_run_start()->set_continued(true);
  EXPECT_TRUE(EncodeEnvelope(e).ok());
}

TEST(Messages, AHolderNeedsNoRankSettingsOrAttempt) {
  Maker maker = MakerOf(4);
  Envelope e = maker.Join();
  control::Join& m = *e.mutable_join();
  m.set_holder(true);
  m.clear_rank();
  m.clear_settings();
  m.clear_attempt();
  m.clear_staged();
  const auto encoded = EncodeEnvelope(e);
  EXPECT_TRUE(encoded.ok()) << encoded.error().message();
}

TEST(Messages, AnUnknownKindIsToldFromABrokenMessage) {
  Maker maker = MakerOf(5);
  // Field 99, length-delimited, empty: a body of a later version.
  const auto decoded = DecodeEnvelope(maker.Empty().SerializeAsString() + "\x9a\x06" + '\0');
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.error().code(), Code::kUnimplemented);
}

TEST(Messages, UnknownFieldsAreKept) {
  Maker maker = MakerOf(5);
  Envelope e = maker.Prepared();
  std::string inner = e.restore_prepared().SerializeAsString() + "\xf8\x06\x05";  // field 111 = 5
  e.mutable_restore_prepared()->ParseFromString(inner);
  const auto decoded = DecodeEnvelope(e.SerializeAsString());
  ASSERT_TRUE(decoded.ok()) << decoded.error().message();
  EXPECT_EQ(decoded->SerializeAsString(), e.SerializeAsString());
}

TEST(Messages, TextsAreMadeSafeAndShort) {
  Maker maker = MakerOf(6);
  Envelope e = maker.Prepared();
  e.mutable_restore_prepared()->set_error("bad name \xff\n" + std::string(100'000, 'x'));
  const auto encoded = EncodeEnvelope(e);
  ASSERT_TRUE(encoded.ok()) << encoded.error().message();
  EXPECT_LT(encoded->size(), 5000u);
  const auto decoded = DecodeEnvelope(*encoded);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message();
  EXPECT_THAT(decoded->restore_prepared().error(), HasSubstr("bad name \\xff\\x0a"));

  e.mutable_restore_prepared()->set_error(std::string(9000, 'x'));
  EXPECT_THAT(DecodeEnvelope(e.SerializeAsString()).error().message(),
              HasSubstr("error has 9000 bytes"));
}

// ---- hostile bytes -----------------------------------------------------------------------------

TEST(Messages, DamagedBytesGiveAnAnswer) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Maker maker = MakerOf(seed);
  Prng prng(seed + 1);
  int accepted = 0;
  for (int round = 0; round < 30; ++round) {
    for (const Envelope& e : maker.All()) {
      std::string bytes = *EncodeEnvelope(e);
      for (uint64_t n = 1 + prng.Below(3); n > 0; --n) {
        bytes[prng.Below(bytes.size())] = static_cast<char>(prng.Next());
      }
      if (prng.Chance(1, 4)) bytes.resize(prng.Below(bytes.size()));
      const auto decoded = DecodeEnvelope(bytes);
      if (decoded.ok()) {
        ++accepted;
        ASSERT_TRUE(CheckEnvelope(*decoded).ok());
      }
    }
  }
  EXPECT_GT(accepted, 0);  // some changes fall on values that may be anything
}

TEST(Messages, B2_RandomBytesGiveAnAnswer) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Prng prng(seed);
  EXPECT_EQ(DecodeEnvelope("").error().code(), Code::kInvalidArgument);
  for (int i = 0; i < 20000; ++i) {
    ASSERT_FALSE(DecodeEnvelope(prng.Bytes(prng.Below(100))).ok());
  }
}

TEST(Messages, SmallFramesCannotAskForMuchMemory) {
  Maker maker = MakerOf(7);
  Envelope e = maker.Join();
  // Two bytes each: 4 MiB of frame would become about half a gigabyte.
  for (int i = 0; i < 2'000'000; ++i) e.mutable_join()->mutable_inventory()->add_shards();
  const std::string many = e.SerializeAsString();
  const auto decoded = DecodeEnvelope(many);
  ASSERT_FALSE(decoded.ok());
  EXPECT_THAT(decoded.error().message(), HasSubstr("far more than its size allows"));
}

// A job of ten thousand nodes, near the largest there are.
TEST(Messages, BudgetHasRoomForLargeJobs) {
  Maker maker = MakerOf(8);
  Prng prng(9);
  Envelope e = maker.Empty();
  const WorldShape world{Framework::kOrbax, 10'000, 1, 0};
  *e.mutable_commit()->mutable_generation() = RandomGeneration(&prng, kJob, world);
  e.mutable_commit()->mutable_generation()->set_committed(true);
  const auto encoded = EncodeEnvelope(e);
  ASSERT_TRUE(encoded.ok()) << encoded.error().message();
  EXPECT_TRUE(DecodeEnvelope(*encoded).ok());

  Envelope join = maker.Join();
  for (int i = 0; i < 10'000; ++i) join.mutable_join()->add_previous_nodes("n" + std::to_string(i));
  const auto names = EncodeEnvelope(join);
  ASSERT_TRUE(names.ok()) << names.error().message();
  EXPECT_TRUE(DecodeEnvelope(*names).ok());
}

// ---- records -----------------------------------------------------------------------------------

TEST(MessageRecords, ReadBackAndRefuseEveryFlippedBit) {
  Prng prng(10);
  const control::GenerationRecord generation = RandomGeneration(&prng, kJob, kWorld);
  const std::string good = *EncodeGenerationRecord(generation);
  const auto decoded = DecodeGenerationRecord(good);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message();
  EXPECT_EQ(decoded->SerializeAsString(), generation.SerializeAsString());
  EXPECT_EQ(GenerationIdOf(*decoded).save_number, generation.save_number());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    ASSERT_FALSE(DecodeGenerationRecord(bad).ok()) << "bit " << bit;
  }
}

TEST(MessageRecords, NodeState) {
  Prng prng(11);
  Maker maker = MakerOf(11);
  control::NodeState state;
  state.set_agent(prng.Bytes(16));
  state.set_attempt_counter(4);
  state.set_config_text("job-name: j\xff");  // as it was, whatever that is
  *state.mutable_attempt() =
      ToProto(AttemptId{RandomFixed<Id128>(&prng), RandomFixed<Id128>(&prng), 4});
  *state.mutable_run() = ToProto(maker.run);
  state.set_released(true);
  *state.mutable_restored() = maker.Choice();
  *state.add_saves() = ToProto(maker.save);
  state.add_nodes("node-1");
  const auto encoded = EncodeNodeState(state);
  ASSERT_TRUE(encoded.ok()) << encoded.error().message();
  const auto decoded = DecodeNodeState(*encoded);
  ASSERT_TRUE(decoded.ok()) << decoded.error().message();
  EXPECT_EQ(decoded->SerializeAsString(), state.SerializeAsString());
  EXPECT_EQ(DecodeGenerationRecord(*encoded).error().code(), Code::kDataLoss);

  state.set_attempt_counter(3);
  EXPECT_FALSE(EncodeNodeState(state).ok());
  // Written by something else, the digest right: a record that breaks a rule is damaged too.
  const auto broken =
      DecodeNodeState(EncodeRecord(RecordKind::kNodeState, state.SerializeAsString()));
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.error().code(), Code::kDataLoss);
}

TEST(MessageRecords, Rendezvous) {
  Prng prng(12);
  control::RendezvousRecord record;
  record.set_job(kJob);
  record.set_epoch(3);
  *record.mutable_run() = ToProto(RandomRun(&prng));
  record.mutable_coordinator()->set_host("host");
  record.mutable_coordinator()->set_port(4242);
  record.set_boot(prng.Bytes(16));
  record.set_node("node-0");
  const auto encoded = EncodeRendezvousRecord(record);
  ASSERT_TRUE(encoded.ok()) << encoded.error().message();
  EXPECT_EQ(DecodeRendezvousRecord(*encoded)->SerializeAsString(), record.SerializeAsString());
  record.mutable_coordinator()->set_port(0);
  EXPECT_FALSE(EncodeRendezvousRecord(record).ok());
}

}  // namespace
}  // namespace tierkeep
