#include "io/stream.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "base/prng.h"
#include "io/socket_util.h"
#include "io/temp_dir_testutil.h"
#include "io/tls_testutil.h"

namespace tierkeep {
namespace {

template <typename R>
Code CodeOf(const R& result) {
  return result.has_value() ? Code::kOk : result.error().code();
}

MutableByteSpan AsWritableBytes(std::string& s) { return std::as_writable_bytes(std::span(s)); }

// Both kinds of stream over loopback.
class StreamTest : public testing::TestWithParam<bool> {
 protected:
  StreamTest() {
    if (GetParam()) tls_ = std::make_unique<TestTls>();
    server_options_.tls = Context("server");
    client_options_.tls = Context("client");
    // Generous: a slow machine must not fail, a hang must.
    server_options_.stall_limit = client_options_.stall_limit = 30s;
    client_options_.connect_deadline = 30s;
  }
  std::shared_ptr<TlsContext> Context(const std::string& name) {
    return tls_ ? tls_->Make(name) : nullptr;
  }
  void Listen() {
    auto listener = ListenStreams("127.0.0.1", 0, server_options_);
    ASSERT_TRUE(listener.ok()) << listener.error().ToString();
    listener_ = std::move(*listener);
  }
  HostPort Address() const { return {"127.0.0.1", listener_->port()}; }
  // A thread that accepts one stream and hands it to `serve`.
  template <typename F>
  std::thread Serve(F serve) {
    return std::thread([this, serve] {
      auto stream = listener_->Accept();
      ASSERT_TRUE(stream.ok()) << stream.error().ToString();
      serve(**stream);
    });
  }
  std::unique_ptr<Stream> Connect() {
    auto stream = ConnectStream(Address(), client_options_);
    EXPECT_TRUE(stream.ok()) << stream.error().ToString();
    return stream.ok() ? std::move(*stream) : nullptr;
  }

  std::unique_ptr<TestTls> tls_;
  StreamOptions server_options_;
  StreamOptions client_options_;
  std::unique_ptr<StreamListener> listener_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, StreamTest, testing::Bool(),
                         [](const auto& p) { return p.param ? "Tls" : "Plain"; });

TEST_P(StreamTest, CarriesBytesBothWays) {
  Listen();
  const std::string request = Prng(1).Bytes(3 << 20);
  const std::string answer = Prng(2).Bytes(5 << 20);
  std::thread server = Serve([&](Stream& stream) {
    std::string got(request.size(), '\0');
    // In odd pieces: pieces of the two ends don't match.
    for (size_t at = 0; at < got.size();) {
      const size_t n = std::min<size_t>(got.size() - at, 77777);
      ASSERT_TRUE(stream.ReadExactly(AsWritableBytes(got).subspan(at, n)).ok());
      at += n;
    }
    EXPECT_EQ(got, request);
    EXPECT_TRUE(stream.WriteAll(AsBytes(answer)).ok());
  });
  const auto stream = Connect();
  ASSERT_TRUE(stream);
  EXPECT_TRUE(stream->WriteAll(AsBytes(request)).ok());
  EXPECT_TRUE(stream->WriteAll({}).ok());
  std::string got(answer.size(), '\0');
  EXPECT_TRUE(stream->ReadExactly(AsWritableBytes(got)).ok());
  EXPECT_TRUE(got == answer);
  EXPECT_TRUE(stream->ReadExactly({}).ok());
  server.join();
  EXPECT_EQ(CodeOf(stream->ReadExactly(AsWritableBytes(got))), Code::kUnavailable);
}

TEST_P(StreamTest, WhatWasWrittenBeforeClosingArrives) {
  Listen();
  const std::string bytes = Prng(3).Bytes(4 << 20);
  std::thread server =
      Serve([&](Stream& stream) { EXPECT_TRUE(stream.WriteAll(AsBytes(bytes)).ok()); });
  const auto stream = Connect();
  ASSERT_TRUE(stream);
  std::string got(bytes.size(), '\0');
  // With TLS the handshake of the server happens in its first call.
  EXPECT_TRUE(stream->ReadExactly(AsWritableBytes(got)).ok());
  EXPECT_TRUE(got == bytes);
  server.join();
}

TEST_P(StreamTest, APeerThatClosesEarlyIsAnError) {
  Listen();
  std::thread server =
      Serve([&](Stream& stream) { EXPECT_TRUE(stream.WriteAll(AsBytes("only this")).ok()); });
  const auto stream = Connect();
  ASSERT_TRUE(stream);
  std::string got(10, '\0');
  EXPECT_EQ(CodeOf(stream->ReadExactly(AsWritableBytes(got))), Code::kUnavailable);
  server.join();
}

TEST_P(StreamTest, AStalledPeerIsNoticed) {
  Listen();
  client_options_.stall_limit = 50ms;
  std::atomic<bool> done{false};
  std::thread server = Serve([&](Stream& stream) {
    // Takes the handshake and one byte, and then nothing more.
    std::string got(1, '\0');
    EXPECT_TRUE(stream.ReadExactly(AsWritableBytes(got)).ok());
    while (!done) done.wait(false);
  });
  const auto stream = Connect();
  ASSERT_TRUE(stream);
  EXPECT_TRUE(stream->WriteAll(AsBytes("x")).ok());
  std::string got(1, '\0');
  EXPECT_EQ(CodeOf(stream->ReadExactly(AsWritableBytes(got))), Code::kDeadlineExceeded);
  done = true;
  done.notify_all();
  server.join();
}

TEST_P(StreamTest, AWriterIsStoppedByAPeerThatDoesNotRead) {
  server_options_.socket_buffer_bytes = 64 << 10;
  client_options_.socket_buffer_bytes = 64 << 10;
  client_options_.stall_limit = 50ms;
  Listen();
  std::atomic<bool> done{false};
  std::thread server = Serve([&](Stream& stream) {
    std::string got(1, '\0');
    EXPECT_TRUE(stream.ReadExactly(AsWritableBytes(got)).ok());
    while (!done) done.wait(false);
  });
  const auto stream = Connect();
  ASSERT_TRUE(stream);
  const std::string chunk(1 << 20, 'x');
  Status written;
  for (int i = 0; i < 1000 && written.ok(); ++i) written = stream->WriteAll(AsBytes(chunk));
  EXPECT_EQ(CodeOf(written), Code::kDeadlineExceeded);
  done = true;
  done.notify_all();
  server.join();
}

TEST_P(StreamTest, ShutdownWakesAReader) {
  Listen();
  std::atomic<bool> done{false};
  std::thread server = Serve([&](Stream& stream) {
    EXPECT_TRUE(stream.WriteAll(AsBytes("x")).ok());
    while (!done) done.wait(false);
  });
  const auto stream = Connect();
  ASSERT_TRUE(stream);
  std::atomic<bool> reading{false};
  std::thread reader([&] {
    std::string got(1, '\0');
    EXPECT_TRUE(stream->ReadExactly(AsWritableBytes(got)).ok());
    reading = true;
    reading.notify_all();
    EXPECT_EQ(CodeOf(stream->ReadExactly(AsWritableBytes(got))), Code::kCancelled);
  });
  reading.wait(false);
  stream->Shutdown();
  reader.join();
  EXPECT_EQ(CodeOf(stream->WriteAll(AsBytes("x"))), Code::kCancelled);
  done = true;
  done.notify_all();
  server.join();
}

TEST_P(StreamTest, ShutdownEndsAccept) {
  Listen();
  std::thread acceptor([&] { EXPECT_EQ(CodeOf(listener_->Accept()), Code::kCancelled); });
  listener_->Shutdown();
  acceptor.join();
  EXPECT_EQ(CodeOf(listener_->Accept()), Code::kCancelled);
}

TEST_P(StreamTest, NobodyListeningIsUnavailable) {
  Listen();
  const HostPort address = Address();
  listener_.reset();
  EXPECT_EQ(CodeOf(ConnectStream(address, client_options_)), Code::kUnavailable);
  EXPECT_EQ(CodeOf(ConnectStream({"no-such-host.invalid", 1}, client_options_)) == Code::kOk,
            false);
}

TEST_P(StreamTest, NamesAreResolved) {
  Listen();
  std::thread server =
      Serve([&](Stream& stream) { EXPECT_TRUE(stream.WriteAll(AsBytes("x")).ok()); });
  const auto stream = ConnectStream({"localhost", listener_->port()}, client_options_);
  ASSERT_TRUE(stream.ok()) << stream.error().ToString();
  std::string got(1, '\0');
  EXPECT_TRUE((*stream)->ReadExactly(AsWritableBytes(got)).ok());
  server.join();
}

TEST_P(StreamTest, RunningOutOfDescriptorsDropsConnectionsAndRecovers) {
  Listen();
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<std::unique_ptr<Stream>> accepted;
  std::thread acceptor([&] {
    for (;;) {
      auto stream = listener_->Accept();
      if (!stream.ok()) return;
      accepted.push_back(std::move(*stream));
    }
  });
  // Sockets of the client are made first, so that only the server's end lacks descriptors.
  const SocketAddress address = (*ResolveAddress(Address(), NameLookup::kNumericOnly))[0];
  std::vector<UniqueFd> clients;
  int highest = 0;
  for (int i = 0; i < 20; ++i) {
    clients.push_back(std::move(*NewTcpSocket(address, 0)));
    highest = std::max(highest, clients.back().get());
  }
  struct rlimit low = before;
  low.rlim_cur = static_cast<rlim_t>(highest + 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  for (const UniqueFd& client : clients) (void)ConnectWithin(client.get(), address, 30s).ok();
  // Every one is dropped: its end sees the connection closed.
  int dropped = 0;
  for (const UniqueFd& client : clients) {
    MakeBlocking(client.get(), 30s);
    char byte;
    dropped += ::recv(client.get(), &byte, 1, 0) <= 0 && errno != EAGAIN ? 1 : 0;
  }
  EXPECT_EQ(dropped, 20);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  const UniqueFd last = std::move(*NewTcpSocket(address, 0));
  EXPECT_TRUE(ConnectWithin(last.get(), address, 30s).ok());
  listener_->Shutdown();
  acceptor.join();
}

TEST(PlainStreamTest, ATruncatedMapIsDataLossForTheSender) {
  TempDir temp("/dev/shm");
  const auto file = temp.dir().CreateFile("f", 0644);
  ASSERT_TRUE((*file)->Resize(1 << 20).ok());
  const auto map = (*file)->Map(0, 1 << 20, MapAccess::kRead);
  ASSERT_TRUE((*file)->Resize(4096).ok());
  auto listener = ListenStreams("127.0.0.1", 0, {});
  std::thread server([&] {
    auto stream = (*listener)->Accept();
    EXPECT_EQ(CodeOf((*stream)->WriteAll({(*map)->data(), (*map)->size()})), Code::kDataLoss);
  });
  const auto stream = ConnectStream({"127.0.0.1", (*listener)->port()}, {});
  std::string got(1 << 20, '\0');
  EXPECT_EQ(CodeOf((*stream)->ReadExactly(AsWritableBytes(got))), Code::kUnavailable);
  server.join();
}

// What each end sees when the given contexts meet.
struct Meeting {
  Code client = Code::kOk;
  Code server = Code::kOk;
};
Meeting Meet(std::shared_ptr<TlsContext> server_tls, std::shared_ptr<TlsContext> client_tls,
             Duration stall_limit = 30s) {
  StreamOptions server_options;
  server_options.stall_limit = stall_limit;
  server_options.tls = std::move(server_tls);
  StreamOptions client_options;
  client_options.tls = std::move(client_tls);
  auto listener = ListenStreams("127.0.0.1", 0, server_options);
  Meeting meeting;
  std::thread server([&] {
    auto stream = (*listener)->Accept();
    std::string got(1, '\0');
    meeting.server = CodeOf((*stream)->ReadExactly(AsWritableBytes(got)));
    if (meeting.server == Code::kOk) meeting.server = CodeOf((*stream)->WriteAll(AsBytes(got)));
  });
  {
    auto stream = ConnectStream({"127.0.0.1", (*listener)->port()}, client_options);
    meeting.client = CodeOf(stream);
    std::string got(1, 'x');
    if (stream.ok()) meeting.client = CodeOf((*stream)->WriteAll(AsBytes(got)));
    if (meeting.client == Code::kOk) {
      meeting.client = CodeOf((*stream)->ReadExactly(AsWritableBytes(got)));
    }
  }
  server.join();
  return meeting;
}

TEST(TlsStreamTest, D1_OnlyMembersOfTheSameAuthorityMeet) {
  TestTls ours;
  TestTls theirs;
  const Meeting good = Meet(ours.Make("a"), ours.Make("b"));
  EXPECT_EQ(good.client, Code::kOk);
  EXPECT_EQ(good.server, Code::kOk);

  const Meeting foreign_client = Meet(ours.Make("a"), theirs.Make("b"));
  EXPECT_EQ(foreign_client.client, Code::kUnauthenticated);
  EXPECT_EQ(foreign_client.server, Code::kUnauthenticated);
}

// A stranger that itself trusts us, so that only our own check stands in its way.
TEST(TlsStreamTest, ATrustingStrangerIsRefused) {
  TestTls ours;
  TestTls theirs;
  theirs.authority.Issue(theirs.temp.Path("stranger"), "stranger");
  ours.authority.Issue(ours.temp.Path("member"), "member");
  ASSERT_TRUE(theirs.temp.dir()
                  .WriteFileAtomically("stranger/ca.crt",
                                       *ours.temp.dir().ReadSmallFile("member/ca.crt", 1 << 16),
                                       0600)
                  .ok());
  const auto stranger = *TlsContext::Load(theirs.temp.Path("stranger"));
  const auto member = *TlsContext::Load(ours.temp.Path("member"));
  const Meeting as_client = Meet(member, stranger);
  EXPECT_EQ(as_client.server, Code::kUnauthenticated);
  EXPECT_NE(as_client.client, Code::kOk);
  const Meeting as_server = Meet(stranger, member);
  EXPECT_EQ(as_server.client, Code::kUnauthenticated);
  EXPECT_NE(as_server.server, Code::kOk);
}

TEST(TlsStreamTest, ExpiredAndFutureCertificatesAreRefused) {
  TestTls tls;
  const TestAuthority::Validity expired{std::chrono::hours(-2), std::chrono::hours(-1)};
  const TestAuthority::Validity future{std::chrono::hours(1), std::chrono::hours(2)};
  for (const auto& validity : {expired, future}) {
    const Meeting bad_client = Meet(tls.Make("good"), tls.Make("bad", validity));
    EXPECT_EQ(bad_client.server, Code::kUnauthenticated);
    EXPECT_NE(bad_client.client, Code::kOk);
    const Meeting bad_server = Meet(tls.Make("bad", validity), tls.Make("good"));
    EXPECT_EQ(bad_server.client, Code::kUnauthenticated);
    EXPECT_NE(bad_server.server, Code::kOk);
  }
}

TEST(TlsStreamTest, PlainAndTlsDoNotMeet) {
  TestTls tls;
  const Meeting plain_client = Meet(tls.Make("a"), nullptr, 200ms);
  EXPECT_NE(plain_client.client, Code::kOk);
  EXPECT_NE(plain_client.server, Code::kOk);
}

TEST(TlsStreamTest, NewConnectionsUseRenewedCertificates) {
  TestTls tls;
  const auto server = tls.Make("server");
  const auto client = tls.Make("client");
  EXPECT_EQ(Meet(server, client).server, Code::kOk);
  tls.authority.Issue(tls.temp.Path("client"), "client",
                      {std::chrono::hours(-2), std::chrono::hours(-1)});
  EXPECT_EQ(Meet(server, client).server, Code::kUnauthenticated);
  tls.authority.Issue(tls.temp.Path("client"), "client");
  EXPECT_EQ(Meet(server, client).server, Code::kOk);
}

TEST(TlsStreamTest, AHandshakeThatTricklesIsCutOff) {
  TestTls tls;
  StreamOptions options;
  options.tls = tls.Make("server");
  options.stall_limit = 200ms;
  auto listener = ListenStreams("127.0.0.1", 0, options);
  std::atomic<bool> done{false};
  std::thread trickler([&] {
    const auto address =
        (*ResolveAddress({"127.0.0.1", (*listener)->port()}, NameLookup::kNumericOnly))[0];
    const UniqueFd fd = std::move(*NewTcpSocket(address, 0));
    ASSERT_TRUE(ConnectWithin(fd.get(), address, 30s).ok());
    MakeBlocking(fd.get(), 10ms);
    // The beginning of a long record, then a byte of it whenever nothing comes back for a moment.
    (void)::send(fd.get(), "\x16\x03\x01\x3f\xff", 5, MSG_NOSIGNAL);
    while (!done) {
      char byte = 0;
      if (::recv(fd.get(), &byte, 1, 0) == 0) return;
      if (::send(fd.get(), &byte, 1, MSG_NOSIGNAL) < 0) return;
    }
  });
  auto stream = (*listener)->Accept();
  std::string got(1, '\0');
  EXPECT_FALSE((*stream)->ReadExactly(AsWritableBytes(got)).ok());
  done = true;
  stream->reset();
  trickler.join();
}

// Whatever a peer does after any number of bytes, the other end gets an error, never wrong bytes.
TEST(TlsStreamTest, AConnectionCutAtAnyByteIsAnError) {
  TestTls tls;
  StreamOptions server_options;
  server_options.tls = tls.Make("server");
  StreamOptions client_options;
  client_options.tls = tls.Make("client");
  const std::string message(100, 'm');
  bool whole = false;
  int cuts = 0;
  for (int limit = 1; !whole; limit += limit < 700 ? 61 : 97) {
    ASSERT_LT(limit, 20000);
    auto listener = ListenStreams("127.0.0.1", 0, server_options);
    // Between the two ends: passes on `limit` bytes of the client's, then closes.
    auto relay_fd = ListenTcp("127.0.0.1", 0, 0);
    const uint16_t relay_port = LocalPort(relay_fd->get());
    std::thread server([&] {
      auto stream = (*listener)->Accept();
      std::string got(message.size(), '\0');
      if ((*stream)->ReadExactly(AsWritableBytes(got)).ok()) {
        EXPECT_EQ(got, message);
        whole = true;
      }
    });
    std::thread relay([&] {
      MakeBlocking(relay_fd->get(), 30s);
      UniqueFd client(::accept(relay_fd->get(), nullptr, nullptr));
      const auto address =
          (*ResolveAddress({"127.0.0.1", (*listener)->port()}, NameLookup::kNumericOnly))[0];
      const UniqueFd to_server = std::move(*NewTcpSocket(address, 0));
      ASSERT_TRUE(ConnectWithin(to_server.get(), address, 30s).ok());
      MakeBlocking(to_server.get(), 30s);
      std::thread back([&] {
        char buffer[4096];
        for (ssize_t n; (n = ::recv(to_server.get(), buffer, sizeof(buffer), 0)) > 0;) {
          (void)::send(client.get(), buffer, static_cast<size_t>(n), MSG_NOSIGNAL);
        }
        ::shutdown(client.get(), SHUT_RDWR);
      });
      char byte;
      for (int i = 0; i < limit && ::recv(client.get(), &byte, 1, 0) == 1; ++i) {
        (void)::send(to_server.get(), &byte, 1, MSG_NOSIGNAL);
      }
      ::shutdown(to_server.get(), SHUT_RDWR);
      ::shutdown(client.get(), SHUT_RDWR);
      back.join();
    });
    {
      auto stream = ConnectStream({"127.0.0.1", relay_port}, client_options);
      if (stream.ok()) (void)(*stream)->WriteAll(AsBytes(message)).ok();
      std::string got(1, '\0');
      if (stream.ok()) {
        EXPECT_FALSE((*stream)->ReadExactly(AsWritableBytes(got)).ok());
      }
    }
    relay.join();
    server.join();
    ++cuts;
  }
  EXPECT_GT(cuts, 10);
}

TEST(NameLookup, AHangingOneEndsAtTheDeadline) {
  std::promise<void> answer;
  std::shared_future<void> answered = answer.get_future();
  const auto hangs = [answered](const HostPort& where,
                                NameLookup lookup) -> Result<std::vector<SocketAddress>> {
    if (lookup == NameLookup::kAllowed) answered.wait();
    return Error(Code::kNotFound, where.host);
  };
  for (int i = 0; i < kHangingLookupsMax; ++i) {
    const auto found = ResolveWithin({"slow.example", 1}, 1ms, hangs);
    ASSERT_FALSE(found.ok());
    ASSERT_EQ(found.error().code(), Code::kDeadlineExceeded) << found.error().ToString();
  }
  // Only so many threads are left behind; a numeric address needs none.
  EXPECT_EQ(ResolveWithin({"slow.example", 1}, 1ms, hangs).error().code(), Code::kUnavailable);
  EXPECT_TRUE(ResolveWithin({"127.0.0.1", 1}, 1ms).ok());
  answer.set_value();
  // They end once they are answered.
  Result<std::vector<SocketAddress>> again = Error(Code::kUnavailable, "");
  while (again.error().code() == Code::kUnavailable) {
    again = ResolveWithin({"slow.example", 1}, 30s, hangs);
    ASSERT_FALSE(again.ok());
  }
  EXPECT_EQ(again.error().code(), Code::kNotFound);
}

}  // namespace
}  // namespace tierkeep
