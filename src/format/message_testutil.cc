#include "format/message_testutil.h"

namespace tierkeep {

using control::Envelope;

ShardSummary MessageMaker::Shard(Rank rank) {
  return RandomShard(&prng, kJob, save, World(), rank, 0);
}

Envelope MessageMaker::Empty() {
  Envelope e;
  e.set_job(kJob);
  e.set_sender("node-a");
  e.set_epoch(7);
  *e.mutable_run() = ToProto(run);
  return e;
}

std::string MessageMaker::Token() { return prng.Bytes(32); }

void MessageMaker::Data(control::Address* address) {
  address->set_host("10.0.0.1");
  address->set_port(1234);
}

control::JobSettings MessageMaker::Settings() {
  JobConfig config;
  config.job = kJob;
  config.world = World();
  config.peer_ranks = {0, 2};
  return SettingsOf(config);
}

control::RestoreChoice MessageMaker::Choice() {
  control::RestoreChoice choice;
  choice.set_decision(1);
  *choice.mutable_generation() = RandomGeneration(&prng, kJob, World());
  return choice;
}

control::SaveStaged MessageMaker::Staged() {
  control::SaveStaged m;
  ShardSummary shard = Shard(1);
  shard.identity.ordinal = 3;
  *m.mutable_save() = ToProto(save);
  m.set_ordinal(3);
  *m.add_shards() = ToProto(shard);
  return m;
}

control::Compare MessageMaker::Compare() {
  control::Compare m;
  m.set_order(6);
  *m.mutable_own() = ToProto(Shard(3));
  m.mutable_own()->set_logical(prng.Bytes(32));
  *m.mutable_other()->mutable_shard() = m.own();
  return m;
}

control::Divergence MessageMaker::Divergence() {
  control::Divergence m;
  *m.mutable_save() = ToProto(save);
  m.set_odd_total(1);
  m.add_odd()->set_node("node-a");
  m.mutable_odd(0)->set_reference_node("node-b");
  m.mutable_odd(0)->set_total(1);
  m.mutable_odd(0)->add_differences("the file x differs");
  return m;
}

Envelope MessageMaker::Join() {
  Envelope e = Empty();
  control::Join& m = *e.mutable_join();
  m.set_rank(1);
  *m.mutable_attempt() =
      ToProto(AttemptId{RandomFixed<Id128>(&prng), RandomFixed<Id128>(&prng), 3});
  m.set_node("node-a");
  *m.mutable_settings() = Settings();
  Data(m.mutable_data());
  m.set_data_token(Token());
  *m.mutable_highest_run() = ToProto(run);
  *m.mutable_in_run() = ToProto(run);
  m.set_released(true);
  *m.mutable_restored() = Choice();
  *m.mutable_inventory()->add_shards() = ToProto(Shard(2));
  *m.mutable_inventory()->add_generations() = RandomGeneration(&prng, kJob, World());
  m.mutable_inventory()->add_unreadable()->set_detail("staged/x: EIO");
  m.add_previous_nodes("node-b");
  *m.add_staged() = Staged();
  *m.mutable_last_run() = ToProto(run);
  *m.mutable_last_restored() = Choice();
  m.set_agent_boot(prng.Bytes(16));
  return e;
}

Envelope MessageMaker::RunStart() {
  Envelope e = Empty();
  control::RunStart& m = *e.mutable_run_start();
  *m.mutable_run() = ToProto(run);
  m.set_epoch(7);
  *m.mutable_settings() = Settings();
  for (uint32_t i = 0; i <= World().nodes; ++i) {
    control::Member& member = *m.add_members();
    member.set_rank(i < World().nodes ? i : 0);
    member.set_holder(i == World().nodes);
    member.set_node("node-" + std::to_string(i));
    member.set_agent(prng.Bytes(16));
    Data(member.mutable_data());
    member.set_data_token(Token());
  }
  return e;
}

Envelope MessageMaker::Restore() {
  Envelope e = Empty();
  *e.mutable_restore()->mutable_choice() = Choice();
  control::SourceList& wanted = *e.mutable_restore()->add_wanted();
  *wanted.mutable_shard() = ToProto(Shard(0));
  wanted.add_nodes("node-b");
  return e;
}

Envelope MessageMaker::Prepared() {
  Envelope e = Empty();
  e.mutable_restore_prepared()->set_decision(1);
  e.mutable_restore_prepared()->add_bad_shards(Shard(0).digest.Raw());
  e.mutable_restore_prepared()->add_bad_sources("node-c");
  return e;
}

Envelope MessageMaker::Commit() {
  Envelope e = Empty();
  *e.mutable_commit()->mutable_generation() = RandomGeneration(&prng, kJob, World());
  e.mutable_commit()->mutable_generation()->set_committed(true);
  e.mutable_commit()->add_keep(Shard(0).digest.Raw());
  return e;
}

std::vector<Envelope> MessageMaker::All() {
  std::vector<Envelope> all = {Join(), RunStart(), Restore(), Prepared(), Commit()};
  const auto add = [&]() -> Envelope& { return all.emplace_back(Empty()); };
  add().mutable_rejected()->set_reason("rank 1 is node-b's");
  add().mutable_release()->set_decision(2);
  *add().mutable_save_staged() = Staged();
  Envelope& failed = add();
  *failed.mutable_save_failed()->mutable_save() = ToProto(save);
  failed.mutable_save_failed()->set_ordinal(1);
  failed.mutable_save_failed()->set_error("no space");
  Envelope& keep = add();
  keep.mutable_keep()->set_order(4);
  *keep.mutable_keep()->add_wanted()->mutable_shard() = ToProto(Shard(3));
  Envelope& kept = add();
  kept.mutable_kept()->set_order(4);
  kept.mutable_kept()->add_held(Shard(3).digest.Raw());
  *add().mutable_drop()->mutable_save() = ToProto(save);
  Envelope& give_back = add();
  give_back.mutable_give_back()->add_digests(Shard(3).digest.Raw());
  give_back.mutable_give_back()->set_reason("memory is short");
  Envelope& recorded = add();
  *recorded.mutable_commit_recorded()->mutable_run() = ToProto(run);
  recorded.mutable_commit_recorded()->set_save_number(5);
  recorded.mutable_commit_recorded()->add_missing(Shard(3).digest.Raw());
  add().mutable_ping()->set_number(1);
  *add().mutable_run_ended()->mutable_run() = ToProto(run);
  add().mutable_leaving();
  Envelope& status = add();
  status.mutable_job_status()->set_state("running");
  status.mutable_job_status()->add_missing_ranks(3);
  *status.mutable_job_status()->mutable_last_committed() = RandomGeneration(&prng, kJob, World());
  *status.mutable_job_status()->mutable_divergence() = Divergence();
  *add().mutable_compare() = Compare();
  add().mutable_compared()->set_order(6);
  *add().mutable_divergence() = Divergence();
  control::RestoreOrder* order = add().mutable_restore_orders()->add_orders();
  order->set_job(kJob);
  order->set_skip_step(7);
  return all;
}

}  // namespace tierkeep
