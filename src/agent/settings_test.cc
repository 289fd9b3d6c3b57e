#include "agent/settings.h"

#include <gmock/gmock.h>

namespace tierkeep {
namespace {

using ::testing::HasSubstr;

SettingSources Minimal() {
  SettingSources s;
  s.flags = {{"mount", "/m"}, {"rendezvous", "file:/r"}, {"node-name", "n0"}};
  return s;
}

TEST(Settings, LaterSourcesWin) {
  SettingSources s = Minimal();
  s.yaml = "control-port: 1\ndata-port: 1\npull-streams: 1\n";
  s.yaml_name = "agent.yaml";
  s.environment = [](const std::string& name) -> std::optional<std::string> {
    if (name == "TIERKEEP_DATA_PORT" || name == "TIERKEEP_PULL_STREAMS") return "2";
    return std::nullopt;
  };
  s.flags["pull-streams"] = "3";
  const auto loaded = LoadSettings(s);
  ASSERT_TRUE(loaded.ok()) << loaded.error().ToString();
  EXPECT_EQ(loaded->settings.control_port, 1);
  EXPECT_EQ(loaded->settings.data_port, 2);
  EXPECT_EQ(loaded->settings.pull_streams, 3u);
  EXPECT_EQ(loaded->origin.at("control-port"), "file");
  EXPECT_EQ(loaded->origin.at("data-port"), "environment");
  EXPECT_EQ(loaded->origin.at("pull-streams"), "flag");
  EXPECT_EQ(loaded->origin.at("mount"), "flag");
  EXPECT_EQ(loaded->origin.at("threads"), "default");
}

TEST(Settings, PrintedSettingsReadBackTheSame) {
  SettingSources s = Minimal();
  s.flags["stop-budget"] = "7";
  s.flags["data-encryption"] = "off";
  s.flags["log-file"] = "/tmp/a \"b\": c";
  const auto first = LoadSettings(s);
  ASSERT_TRUE(first.ok());
  SettingSources again;
  again.yaml = PrintSettings(*first);
  const auto second = LoadSettings(again);
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_EQ(second->settings.stop_budget, 7s);
  EXPECT_FALSE(second->settings.data_encryption);
  EXPECT_EQ(second->settings.log_file, "/tmp/a \"b\": c");
  EXPECT_EQ(second->settings.listen, "127.0.0.1");
}

TEST(Settings, ErrorsNameSettingSourceAndRule) {
  const struct {
    std::string name, value, expected;
  } cases[] = {
      {"control-port", "70000", "--control-port: control-port \"70000\""},
      {"control-port", "4x", "whole number from 0 to 65535"},
      {"log-format", "xml", "must be one of: text, json"},
      {"data-encryption", "maybe", "must be on or off"},
      {"no-such", "1", "unknown setting \"no-such\""},
      {"rendezvous", "etcd:1", "must be file:DIR or static:HOST:PORT"},
      {"rendezvous", "static:h:0", "must be file:DIR or static:HOST:PORT"},
      {"stop-budget", "0", "whole number from 1 to 3600"},
      {"metrics", "127.0.0.1", "must be HOST:PORT"},
      {"metrics", "127.0.0.1:70000", "must be HOST:PORT"},
      {"metrics", "127.0.0.1:80x", "must be HOST:PORT"},
      {"metrics", ":80", "must be HOST:PORT"},
      {"on-absent", "wait", "must be one of: stop, go-on"},
  };
  for (const auto& c : cases) {
    SettingSources s = Minimal();
    s.flags[c.name] = c.value;
    const auto loaded = LoadSettings(s);
    ASSERT_FALSE(loaded.ok()) << c.name;
    EXPECT_EQ(loaded.error().code(), Code::kInvalidArgument);
    EXPECT_THAT(loaded.error().message(), HasSubstr(c.expected));
  }
  SettingSources s = Minimal();
  s.flags.erase("mount");
  EXPECT_THAT(LoadSettings(s).error().message(), HasSubstr("TIERKEEP_MOUNT"));
  s = Minimal();
  s.yaml = "mount: [a]\n";
  s.yaml_name = "f.yaml";
  EXPECT_THAT(LoadSettings(s).error().message(), HasSubstr("f.yaml: mount must have a plain"));
}

TEST(Settings, PlainTcpBeyondLoopbackNeedsInsecure) {
  SettingSources s = Minimal();
  s.flags["advertise"] = "10.1.2.3";
  EXPECT_THAT(LoadSettings(s).error().message(), HasSubstr("insecure"));
  s.flags["insecure"] = "true";
  EXPECT_TRUE(LoadSettings(s).ok());
  s.flags.erase("insecure");
  s.flags["tls-dir"] = "/certs";
  EXPECT_TRUE(LoadSettings(s).ok());
  s.flags.erase("tls-dir");
  s.flags["advertise"] = "127.0.0.1";
  EXPECT_TRUE(LoadSettings(s).ok());
  s.flags["listen"] = "0.0.0.0";
  EXPECT_FALSE(LoadSettings(s).ok());
}

TEST(Settings, LoopbackHosts) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.8.7", "::1"}) {
    EXPECT_TRUE(IsLoopbackHost(host)) << host;
  }
  for (const char* host : {"127.evil.example", "128.0.0.1", "127.0.0", "::2", ""}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(Settings, StaticRendezvous) {
  const auto r = ParseRendezvous("static:[::1]:4242");
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->host, "::1");
  EXPECT_EQ(r->port, 4242);
}

TEST(Settings, HostsAndPorts) {
  EXPECT_EQ(ParseHostPort("[::1]:0", 0), (HostPort{"::1", 0}));
  EXPECT_EQ(ParseHostPort("h:65535", 1), (HostPort{"h", 65535}));
  for (const char* bad : {"h", "h:", "h:-1", "h:65536", ":1", "h:0"}) {
    EXPECT_FALSE(ParseHostPort(bad, 1).has_value()) << bad;
  }
}

}  // namespace
}  // namespace tierkeep
