#include "io/frame_network.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <vector>

#include "base/prng.h"
#include "io/socket_util.h"
#include "io/tls_testutil.h"

namespace tierkeep {
namespace {

// Keeps all that happened; tests wait for what they expect, within a generous deadline.
class Recorder : public FrameHandler {
 public:
  void OnAccepted(ConnectionId connection, const HostPort& peer) override {
    Note([&] {
      EXPECT_TRUE(known_.emplace(connection, true).second);
      accepted.push_back(connection);
      peers[connection] = peer;
    });
  }
  void OnConnected(ConnectionId connection) override {
    Note([&] { connected.push_back(connection); });
  }
  void OnFrame(ConnectionId connection, std::string frame) override {
    Note([&] {
      EXPECT_EQ(closed.count(connection), 0u);
      frames[connection].push_back(std::move(frame));
    });
  }
  void OnClosed(ConnectionId connection, const Error& why) override {
    Note([&] { EXPECT_TRUE(closed.emplace(connection, why).second) << why.ToString(); });
  }

  template <typename F>
  bool Wait(F condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), condition);
  }
  // kOk while it is open.
  Code CloseCode(ConnectionId connection) {
    const std::lock_guard lock(mutex_);
    const auto found = closed.find(connection);
    return found == closed.end() ? Code::kOk : found->second.code();
  }
  bool WaitClosed(ConnectionId connection) {
    return Wait([&] { return closed.count(connection) > 0; });
  }

  std::vector<ConnectionId> accepted;
  std::vector<ConnectionId> connected;
  std::map<ConnectionId, HostPort> peers;
  std::map<ConnectionId, std::vector<std::string>> frames;
  std::map<ConnectionId, Error> closed;

 private:
  template <typename F>
  void Note(F f) {
    const std::lock_guard lock(mutex_);
    f();
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<ConnectionId, bool> known_;
};

std::unique_ptr<FrameNetwork> StartNetwork(FrameNetworkOptions options, FrameHandler* handler) {
  options.listen_host = "127.0.0.1";
  auto network = StartFrameNetwork(options, handler);
  EXPECT_TRUE(network.ok()) << network.error().ToString();
  return std::move(*network);
}

HostPort AddressOf(const FrameNetwork& network) { return {"127.0.0.1", network.port()}; }

std::string Framed(std::string_view body) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(body.size() >> shift);
  return out.append(body);
}

// A peer that speaks TCP only, to misbehave with.
class RawPeer {
 public:
  explicit RawPeer(const HostPort& to) {
    const SocketAddress address = (*ResolveAddress(to, NameLookup::kNumericOnly))[0];
    fd_ = std::move(*NewTcpSocket(address, 0));
    connected_ = ConnectWithin(fd_.get(), address, 30s).ok();
    MakeBlocking(fd_.get(), 30s);
  }
  bool connected() const { return connected_; }
  bool Send(std::string_view bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  // True when the other end closes, whatever it sent before.
  bool SeesClose() {
    char buffer[4096];
    ssize_t n;
    while ((n = ::recv(fd_.get(), buffer, sizeof(buffer), 0)) > 0) {
    }
    return n == 0 || errno != EAGAIN;
  }
  int fd() const { return fd_.get(); }
  void Close() { fd_.Reset(); }

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

class FrameNetworkTest : public testing::TestWithParam<bool> {
 protected:
  FrameNetworkTest() {
    if (GetParam()) tls_ = std::make_unique<TestTls>();
    options_.connect_deadline = options_.first_frame_deadline = 30s;
  }
  FrameNetworkOptions Options(const std::string& name) {
    FrameNetworkOptions options = options_;
    if (tls_) options.tls = tls_->Make(name);
    return options;
  }
  void StartBoth() {
    server_ = StartNetwork(Options("server"), &server_handler_);
    client_ = StartNetwork(Options("client"), &client_handler_);
  }
  // A connection and the server's name for it.
  void ConnectBoth() {
    StartBoth();
    here_ = client_->Connect(AddressOf(*server_));
    client_->Send(here_, "hello");
    ASSERT_TRUE(server_handler_.Wait([&] { return server_handler_.frames.size() == 1; }));
    there_ = server_handler_.accepted.at(0);
  }

  std::unique_ptr<TestTls> tls_;
  FrameNetworkOptions options_;
  Recorder server_handler_;
  Recorder client_handler_;
  std::unique_ptr<FrameNetwork> server_;
  std::unique_ptr<FrameNetwork> client_;
  ConnectionId here_ = 0;
  ConnectionId there_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Kinds, FrameNetworkTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "Tls" : "Plain"; });

TEST_P(FrameNetworkTest, CarriesFramesOfAllSizesInOrder) {
  ConnectBoth();
  Prng prng(7);
  std::vector<std::string> sent{"hello"};
  for (const size_t size : {0, 1, 3, 4, 5, 16383, 16384, 65536, 1 << 20, 5000000, 2}) {
    sent.push_back(prng.Bytes(size));
  }
  for (int i = 0; i < 1000; ++i) sent.push_back(std::to_string(i));
  for (size_t i = 1; i < sent.size(); ++i) client_->Send(here_, sent[i]);
  for (const std::string& frame : sent) server_->Send(there_, frame);
  ASSERT_TRUE(
      server_handler_.Wait([&] { return server_handler_.frames[there_].size() == sent.size(); }));
  ASSERT_TRUE(
      client_handler_.Wait([&] { return client_handler_.frames[here_].size() == sent.size(); }));
  EXPECT_TRUE(server_handler_.frames[there_] == sent);
  EXPECT_TRUE(client_handler_.frames[here_] == sent);
  EXPECT_EQ(client_handler_.connected, std::vector<ConnectionId>{here_});
  EXPECT_EQ(server_handler_.peers[there_].host, "127.0.0.1");
  EXPECT_EQ(server_->rejected_frames(), 0u);
}

TEST_P(FrameNetworkTest, CloseSendsWhatIsQueuedFirst) {
  ConnectBoth();
  const std::string frame(10000, 'f');
  for (int i = 0; i < 2000; ++i) client_->Send(here_, frame);
  client_->Close(here_);
  client_->Send(here_, "too late");
  ASSERT_TRUE(server_handler_.WaitClosed(there_));
  EXPECT_EQ(server_handler_.frames[there_].size(), 2001u);
  EXPECT_EQ(server_handler_.CloseCode(there_), Code::kUnavailable);
  ASSERT_TRUE(client_handler_.WaitClosed(here_));
  EXPECT_EQ(client_handler_.CloseCode(here_), Code::kCancelled);
}

TEST_P(FrameNetworkTest, NobodyListeningIsReportedOnce) {
  StartBoth();
  const HostPort gone = AddressOf(*server_);
  server_.reset();
  const ConnectionId id = client_->Connect(gone);
  client_->Send(id, "lost");
  ASSERT_TRUE(client_handler_.WaitClosed(id));
  EXPECT_EQ(client_handler_.CloseCode(id), Code::kUnavailable);
  const ConnectionId nameless = client_->Connect({"no-such-host.invalid", 1});
  ASSERT_TRUE(client_handler_.WaitClosed(nameless));
  EXPECT_NE(client_handler_.CloseCode(nameless), Code::kOk);
  EXPECT_TRUE(client_handler_.connected.empty());
}

TEST_P(FrameNetworkTest, NamesAreResolved) {
  StartBoth();
  const ConnectionId id = client_->Connect({"localhost", server_->port()});
  client_->Send(id, "hello");
  EXPECT_TRUE(server_handler_.Wait([&] { return server_handler_.frames.size() == 1; }));
}

TEST_P(FrameNetworkTest, DestructionReportsEveryConnectionOnce) {
  ConnectBoth();
  std::vector<ConnectionId> ids{here_};
  for (int i = 0; i < 20; ++i) ids.push_back(client_->Connect(AddressOf(*server_)));
  ids.push_back(client_->Connect({"localhost", server_->port()}));
  client_.reset();
  EXPECT_EQ(client_handler_.closed.size(), ids.size());
  for (const ConnectionId id : ids) EXPECT_EQ(client_handler_.CloseCode(id), Code::kCancelled);
  ASSERT_TRUE(server_handler_.WaitClosed(there_));
}

TEST_P(FrameNetworkTest, TooLongFramesCloseTheirConnection) {
  options_.frame_bytes_max = 1000;
  server_ = StartNetwork(Options("server"), &server_handler_);
  options_.frame_bytes_max = 2000;
  client_ = StartNetwork(Options("client"), &client_handler_);
  const ConnectionId good = client_->Connect(AddressOf(*server_));
  client_->Send(good, std::string(1000, 'g'));
  const ConnectionId bad = client_->Connect(AddressOf(*server_));
  client_->Send(bad, "first");
  client_->Send(bad, std::string(1001, 'b'));
  ASSERT_TRUE(client_handler_.WaitClosed(bad));
  ASSERT_TRUE(server_handler_.Wait([&] { return server_handler_.closed.size() == 1; }));
  EXPECT_EQ(server_handler_.closed.begin()->second.code(), Code::kInvalidArgument);
  EXPECT_EQ(server_->rejected_frames(), 1u);
  // The other one goes on.
  client_->Send(good, "still here");
  EXPECT_TRUE(server_handler_.Wait([&] {
    return std::any_of(server_handler_.frames.begin(), server_handler_.frames.end(),
                       [](const auto& f) { return f.second.back() == "still here"; });
  }));
}

TEST_P(FrameNetworkTest, AHalfOpenPeerIsDroppedInTime) {
  options_.first_frame_deadline = 100ms;
  StartBoth();
  std::vector<std::unique_ptr<RawPeer>> peers;
  for (int i = 0; i < 10; ++i) {
    peers.push_back(std::make_unique<RawPeer>(AddressOf(*server_)));
    // Nothing, a part of a header or of a frame, or of a TLS hello.
    const std::string half = tls_ ? std::string("\x16\x03\x01\x02\x00\x01", 6) : Framed("half");
    ASSERT_TRUE(peers.back()->Send(half.substr(0, i % half.size())));
  }
  for (const auto& peer : peers) EXPECT_TRUE(peer->SeesClose());
  // A peer that sent its frame may stay quiet for longer than that.
  const ConnectionId id = client_->Connect(AddressOf(*server_));
  client_->Send(id, "hello");
  RawPeer last(AddressOf(*server_));
  EXPECT_TRUE(last.SeesClose());
  EXPECT_EQ(client_handler_.CloseCode(id), Code::kOk);
}

TEST_P(FrameNetworkTest, ThousandsOfStrangersDoNotKeepAMemberOut) {
  options_.connections_max = 50;
  StartBoth();
  const ConnectionId before = client_->Connect(AddressOf(*server_));
  client_->Send(before, "before");
  ASSERT_TRUE(server_handler_.Wait([&] { return server_handler_.frames.size() == 1; }));
  std::vector<std::unique_ptr<RawPeer>> strangers;
  for (int i = 0; i < 2000; ++i) {
    strangers.push_back(std::make_unique<RawPeer>(AddressOf(*server_)));
    ASSERT_TRUE(strangers.back()->connected());
    if (strangers.size() > 300) strangers.erase(strangers.begin());
  }
  const ConnectionId after = client_->Connect(AddressOf(*server_));
  client_->Send(after, "after");
  EXPECT_TRUE(server_handler_.Wait([&] { return server_handler_.frames.size() == 2; }));
  EXPECT_EQ(client_handler_.CloseCode(before), Code::kOk);
  // All but fifty have been sent away.
  for (size_t i = 0; i + 60 < strangers.size(); ++i) EXPECT_TRUE(strangers[i]->SeesClose());
}

TEST_P(FrameNetworkTest, RunningOutOfDescriptorsPasses) {
  ConnectBoth();
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const SocketAddress address = (*ResolveAddress(AddressOf(*server_), NameLookup::kNumericOnly))[0];
  std::vector<UniqueFd> clients;
  int highest = 0;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::move(*NewTcpSocket(address, 0)));
    highest = std::max(highest, clients.back().get());
  }
  struct rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(highest + 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  int dropped = 0;
  for (const UniqueFd& client : clients) {
    (void)ConnectWithin(client.get(), address, 30s).ok();
    MakeBlocking(client.get(), 30s);
    char byte;
    dropped += ::recv(client.get(), &byte, 1, 0) <= 0 && errno != EAGAIN ? 1 : 0;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(dropped, 20);
  client_->Send(here_, "still here");
  const ConnectionId later = client_->Connect(AddressOf(*server_));
  client_->Send(later, "and new ones");
  EXPECT_TRUE(server_handler_.Wait([&] {
    return server_handler_.frames.size() == 2 && server_handler_.frames[there_].size() == 2;
  }));
}

// Answers from within a call, and closes at "stop".
class Echo : public FrameHandler {
 public:
  void OnAccepted(ConnectionId, const HostPort&) override {}
  void OnConnected(ConnectionId) override {}
  void OnFrame(ConnectionId connection, std::string frame) override {
    if (frame == "stop") return network->Close(connection);
    network->Send(connection, std::move(frame));
  }
  void OnClosed(ConnectionId, const Error&) override {}
  FrameNetwork* network = nullptr;
};

TEST_P(FrameNetworkTest, TheHandlerMayUseTheNetwork) {
  Echo echo;
  server_ = StartNetwork(Options("server"), &echo);
  echo.network = server_.get();
  client_ = StartNetwork(Options("client"), &client_handler_);
  const ConnectionId id = client_->Connect(AddressOf(*server_));
  for (int i = 0; i < 100; ++i) client_->Send(id, "ping");
  client_->Send(id, "stop");
  ASSERT_TRUE(client_handler_.WaitClosed(id));
  EXPECT_EQ(client_handler_.frames[id].size(), 100u);
  server_.reset();
}

// Raw peers can't finish a TLS handshake, so what follows is tried over plain TCP only.
TEST(PlainFrameNetworkTest, APeerThatDoesNotReadDelaysCloseByASecondAtMost) {
  Recorder handler;
  const auto network = StartNetwork({}, &handler);
  RawPeer peer(AddressOf(*network));
  ASSERT_TRUE(handler.Wait([&] { return handler.accepted.size() == 1; }));
  const ConnectionId id = handler.accepted[0];
  network->Send(id, std::string(32 << 20, 'x'));
  network->Close(id);
  EXPECT_TRUE(handler.WaitClosed(id));
  EXPECT_EQ(handler.CloseCode(id), Code::kCancelled);
}

TEST(PlainFrameNetworkTest, TheSlowestReaderIsClosedWhenTooMuchIsQueued) {
  Recorder handler;
  FrameNetworkOptions options;
  options.queued_bytes_max = 4 << 20;
  const auto network = StartNetwork(options, &handler);
  Recorder member_handler;
  const auto member = StartNetwork({}, &member_handler);
  RawPeer slow(AddressOf(*network));
  ASSERT_TRUE(handler.Wait([&] { return handler.accepted.size() == 1; }));
  const ConnectionId stuck = handler.accepted[0];
  const ConnectionId good = member->Connect(AddressOf(*network));
  member->Send(good, "hello");
  ASSERT_TRUE(handler.Wait([&] { return handler.frames.size() == 1; }));
  const ConnectionId good_there = handler.frames.begin()->first;
  const std::string frame(100000, 'x');
  for (int i = 0; i < 1000 && handler.CloseCode(stuck) == Code::kOk; ++i) {
    network->Send(stuck, frame);
  }
  ASSERT_TRUE(handler.WaitClosed(stuck));
  EXPECT_EQ(handler.CloseCode(stuck), Code::kResourceExhausted);
  network->Send(good_there, "you may stay");
  EXPECT_TRUE(member_handler.Wait([&] { return member_handler.frames.size() == 1; }));
}

TEST(PlainFrameNetworkTest, APeerMayCloseAtAnyByte) {
  Recorder handler;
  const auto network = StartNetwork({}, &handler);
  const std::string two = Framed("first frame") + Framed("second");
  const size_t first_end = Framed("first frame").size();
  for (size_t cut = 0; cut <= two.size(); ++cut) {
    RawPeer peer(AddressOf(*network));
    ASSERT_TRUE(peer.Send(two.substr(0, cut)));
    peer.Close();
    ASSERT_TRUE(handler.Wait([&] { return handler.closed.size() == cut + 1; }));
    const ConnectionId id = handler.accepted.at(cut);
    const size_t whole = cut == two.size() ? 2 : cut >= first_end ? 1 : 0;
    EXPECT_EQ(handler.frames[id].size(), whole) << cut;
    EXPECT_EQ(handler.CloseCode(id), Code::kUnavailable);
  }
}

TEST(PlainFrameNetworkTest, FramesMayComeByteByByte) {
  Recorder handler;
  const auto network = StartNetwork({}, &handler);
  RawPeer peer(AddressOf(*network));
  for (const char byte : Framed("abc") + Framed("") + Framed("d")) {
    ASSERT_TRUE(peer.Send({&byte, 1}));
  }
  ASSERT_TRUE(handler.Wait([&] { return handler.frames.size() == 1; }));
  const ConnectionId id = handler.accepted.at(0);
  ASSERT_TRUE(handler.Wait([&] { return handler.frames[id].size() == 3; }));
  EXPECT_EQ(handler.frames[id], (std::vector<std::string>{"abc", "", "d"}));
}

TEST(PlainFrameNetworkTest, ALengthBeyondTheLimitIsRejectedBeforeItsBytes) {
  Recorder handler;
  const auto network = StartNetwork({}, &handler);
  RawPeer peer(AddressOf(*network));
  ASSERT_TRUE(peer.Send("\xff\xff\xff\xff"));
  EXPECT_TRUE(peer.SeesClose());
  EXPECT_EQ(network->rejected_frames(), 1u);
}

TEST(PlainFrameNetworkTest, B18_AnUnansweredConnectEndsInTime) {
  // A listener whose queue is full answers nobody.
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  const SocketAddress any = (*ResolveAddress({"127.0.0.1", 0}, NameLookup::kNumericOnly))[0];
  ASSERT_EQ(::bind(listener.get(), any.get(), any.bytes), 0);
  ASSERT_EQ(::listen(listener.get(), 0), 0);
  const HostPort full{"127.0.0.1", LocalPort(listener.get())};
  RawPeer first(full);
  Recorder handler;
  FrameNetworkOptions options;
  options.connect_deadline = 100ms;
  const auto network = StartNetwork(options, &handler);
  std::vector<ConnectionId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(network->Connect(full));
  ASSERT_TRUE(handler.WaitClosed(ids.back()));
  EXPECT_EQ(handler.CloseCode(ids.back()), Code::kDeadlineExceeded);
}

// What each end is told when a client with one context meets a server with another.
void ExpectRefused(std::shared_ptr<TlsContext> server_tls, std::shared_ptr<TlsContext> client_tls) {
  Recorder server_handler;
  Recorder client_handler;
  FrameNetworkOptions server_options;
  server_options.tls = std::move(server_tls);
  server_options.first_frame_deadline = 1s;
  FrameNetworkOptions client_options;
  client_options.tls = std::move(client_tls);
  client_options.connect_deadline = 1s;
  const auto server = StartNetwork(server_options, &server_handler);
  const auto client = StartNetwork(client_options, &client_handler);
  const ConnectionId id = client->Connect(AddressOf(*server));
  client->Send(id, "let me in");
  ASSERT_TRUE(client_handler.WaitClosed(id));
  EXPECT_TRUE(server_handler.accepted.empty());
  EXPECT_TRUE(server_handler.frames.empty());
}

TEST(TlsFrameNetworkTest, D2_OnlyMembersReachTheHandler) {
  TestTls ours;
  TestTls theirs;
  const TestAuthority::Validity expired{std::chrono::hours(-2), std::chrono::hours(-1)};
  ExpectRefused(ours.Make("a"), theirs.Make("b"));
  ExpectRefused(ours.Make("a"), nullptr);
  ExpectRefused(ours.Make("a"), ours.Make("old", expired));
  ExpectRefused(ours.Make("old", expired), ours.Make("a"));
}

TEST(TlsFrameNetworkTest, AClientLearnsThatItsCertificateIsRefused) {
  TestTls tls;
  Recorder server_handler;
  Recorder client_handler;
  FrameNetworkOptions options;
  options.tls = tls.Make("a");
  const auto server = StartNetwork(options, &server_handler);
  options.tls = tls.Make("old", {std::chrono::hours(-2), std::chrono::hours(-1)});
  const auto client = StartNetwork(options, &client_handler);
  const ConnectionId id = client->Connect(AddressOf(*server));
  ASSERT_TRUE(client_handler.WaitClosed(id));
  EXPECT_EQ(client_handler.CloseCode(id), Code::kUnauthenticated);
}

TEST(HostPortTest, Prints) {
  EXPECT_EQ((HostPort{"host", 1}).ToString(), "host:1");
  EXPECT_EQ((HostPort{"::1", 4242}).ToString(), "[::1]:4242");
}

}  // namespace
}  // namespace tierkeep
