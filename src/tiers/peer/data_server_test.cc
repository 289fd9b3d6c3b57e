#include "tiers/peer/data_server.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>

#include "format/data_wire.h"
#include "io/stream.h"
#include "tiers/peer/peer_testutil.h"

namespace tierkeep {
namespace {

std::unique_ptr<Stream> ConnectTo(const PeerNode& node, Duration stall_limit = 60s) {
  StreamOptions options;
  options.stall_limit = stall_limit;
  auto stream = ConnectStream(node.Source().address, options);
  EXPECT_TRUE(stream.ok()) << stream.error().ToString();
  return std::move(*stream);
}

DataResponse ReadResponse(Stream& stream) {
  std::string header(kDataResponseBytes, '\0');
  const Status read = stream.ReadExactly(std::as_writable_bytes(std::span(header)));
  EXPECT_TRUE(read.ok()) << read.error().ToString();
  const auto response = DecodeDataResponse(header);
  EXPECT_TRUE(response.ok());
  return response.ok() ? *response : DataResponse{};
}

std::string ReadBytes(Stream& stream, uint64_t n) {
  std::string out(n, '\0');
  const Status read = stream.ReadExactly(std::as_writable_bytes(std::span(out)));
  EXPECT_TRUE(read.ok()) << read.error().ToString();
  return out;
}

void ExpectClosed(Stream& stream) {
  std::byte byte;
  const Status read = stream.ReadExactly({&byte, 1});
  ASSERT_FALSE(read.ok()) << "more came";
  EXPECT_EQ(read.error().code(), Code::kUnavailable) << read.error().ToString();
}

void Send(Stream& stream, const std::string& bytes) {
  ASSERT_TRUE(stream.WriteAll(AsBytes(bytes)).ok());
}

// Waits for the server's word that it closed a connection which did not end in order.
class ClosedSink : public LogSink {
 public:
  void Write(const LogRecord& record) override {
    const std::lock_guard lock(mutex_);
    if (record.text.find("data connection closed") == std::string_view::npos) return;
    closed_ = true;
    changed_.notify_all();
  }
  bool WaitFor(Duration limit) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, [&] { return closed_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
};

class DataServerTest : public ::testing::Test {
 protected:
  std::string Hello() const { return EncodeDataPreamble(node_.token()); }

  Prng prng_{1};
  PeerNode node_{"node"};
};

TEST_F(DataServerTest, ServesManifestAndChunksOnOneConnection) {
  const Blake3 digest = node_.AddRandomShard(prng_, 500'000);
  const auto held = node_.store().Find(digest);
  auto stream = ConnectTo(node_);
  Send(*stream, Hello() + EncodeDataRequest({.op = DataOp::kManifest, .digest = digest}));
  const DataResponse manifest = ReadResponse(*stream);
  ASSERT_EQ(manifest.code, Code::kOk);
  EXPECT_EQ(ReadBytes(*stream, manifest.body_bytes), *held->encoded);

  uint64_t number = 0;
  for (const ManifestEntry& entry : held->manifest->entries) {
    for (const Chunk& chunk : entry.chunks) {
      Send(*stream, EncodeDataRequest(
                        {.op = DataOp::kChunks, .digest = digest, .first = number++, .count = 1}));
      const DataResponse response = ReadResponse(*stream);
      ASSERT_EQ(response.code, Code::kOk);
      ASSERT_EQ(response.body_bytes, chunk.bytes);
      ASSERT_EQ(ComputeXxh128(AsBytes(ReadBytes(*stream, chunk.bytes))), chunk.digest);
    }
  }
  Send(*stream,
       EncodeDataRequest({.op = DataOp::kChunks, .digest = digest, .first = 0, .count = number}));
  EXPECT_EQ(ReadResponse(*stream).body_bytes, held->manifest->TotalBytes());
}

TEST_F(DataServerTest, WhatItDoesNotHaveIsAnErrorAndTheConnectionGoesOn) {
  const Blake3 digest = node_.AddRandomShard(prng_, 5'000);
  const uint64_t chunks = node_.store().Find(digest)->manifest->ChunkCount();
  auto stream = ConnectTo(node_);
  Send(*stream,
       Hello() + EncodeDataRequest({.op = DataOp::kManifest, .digest = ComputeBlake3("other")}));
  DataResponse response = ReadResponse(*stream);
  EXPECT_EQ(response.code, Code::kNotFound);
  (void)ReadBytes(*stream, response.text_bytes);
  for (const auto& [first, count] : {std::pair<uint64_t, uint64_t>{chunks, 1},
                                     {0, chunks + 1},
                                     {chunks - 1, 2},
                                     {uint64_t{1} << 62, 1},
                                     {0, UINT64_MAX}}) {
    Send(*stream, EncodeDataRequest(
                      {.op = DataOp::kChunks, .digest = digest, .first = first, .count = count}));
    response = ReadResponse(*stream);
    EXPECT_EQ(response.code, Code::kOutOfRange);
    (void)ReadBytes(*stream, response.text_bytes);
  }
  Send(*stream, EncodeDataRequest({.op = DataOp::kManifest, .digest = digest}));
  EXPECT_EQ(ReadResponse(*stream).code, Code::kOk);
  EXPECT_EQ(node_.server().rejected(), 6u);
}

TEST_F(DataServerTest, ListsWhatAReplicaIsComparedBy) {
  const std::string content = prng_.Bytes(1000);
  Manifest manifest;
  manifest.entries.push_back({.type = EntryType::kFile,
                              .mode = 0644,
                              .bytes = content.size(),
                              .chunks = {{content.size(), ComputeXxh128(AsBytes(content))}}});
  LogicalDigestBuilder builder;
  builder.AddFile("", content.size(), ComputeXxh128(AsBytes(content)));
  manifest.logical = builder.Finish().value();
  const Blake3 digest = node_.AddShard(manifest, {content});
  PeerNode asker("asker");
  Puller puller(&asker.store(), &asker.clock(), {}, Logger());
  const auto lines =
      puller.Listing({.digest = digest, .sources = {node_.Source()}}, manifest.logical);
  ASSERT_TRUE(lines.ok()) << lines.error().ToString();
  EXPECT_EQ(*lines, builder.lines());
  // A source that lies, one that has it not, and one that never could compare it.
  const auto code = [&](const Blake3& of, const Blake3& logical) {
    const auto listing = puller.Listing({.digest = of, .sources = {node_.Source()}}, logical);
    return listing.ok() ? Code::kOk : listing.error().code();
  };
  EXPECT_EQ(code(digest, ComputeBlake3("other")), Code::kDataLoss);
  EXPECT_EQ(code(ComputeBlake3("other"), manifest.logical), Code::kNotFound);
  EXPECT_EQ(code(node_.AddRandomShard(prng_, 1000), manifest.logical), Code::kFailedPrecondition);
  EXPECT_EQ(puller.Listing({.digest = digest, .sources = {}}, manifest.logical).error().code(),
            Code::kUnavailable);
}

TEST_F(DataServerTest, AWrongTokenGetsNothing) {
  const Blake3 digest = node_.AddRandomShard(prng_, 5'000);
  for (const size_t wrong : {size_t{0}, size_t{15}, size_t{31}}) {
    std::string token = node_.token();
    token[wrong] = static_cast<char>(token[wrong] + 1);
    auto stream = ConnectTo(node_);
    Send(*stream, EncodeDataPreamble(token) +
                      EncodeDataRequest({.op = DataOp::kManifest, .digest = digest}));
    const DataResponse response = ReadResponse(*stream);
    EXPECT_EQ(response.code, Code::kUnauthenticated);
    (void)ReadBytes(*stream, response.text_bytes);
    ExpectClosed(*stream);
  }
  EXPECT_EQ(node_.server().rejected(), 3u);
}

TEST_F(DataServerTest, AnotherProtocolIsClosedWithoutAWord) {
  auto stream = ConnectTo(node_);
  Send(*stream, "GET / HTTP/1.1\r\n" + std::string(kDataPreambleBytes + kDataRequestBytes, 'x'));
  std::byte byte;
  EXPECT_FALSE(stream->ReadExactly({&byte, 1}).ok());
}

TEST_F(DataServerTest, AnUnknownOperationClosesTheConnection) {
  const Blake3 digest = node_.AddRandomShard(prng_, 5'000);
  auto stream = ConnectTo(node_);
  Send(*stream, Hello() + EncodeDataRequest({.op = DataOp::kManifest, .digest = digest}));
  (void)ReadBytes(*stream, ReadResponse(*stream).body_bytes);
  Send(*stream, EncodeDataRequest({.op = static_cast<DataOp>(77), .digest = digest}));
  const DataResponse response = ReadResponse(*stream);
  EXPECT_EQ(response.code, Code::kInvalidArgument);
  (void)ReadBytes(*stream, response.text_bytes);
  ExpectClosed(*stream);
}

TEST_F(DataServerTest, RandomBytesNeverGetAnythingOut) {
  const Blake3 digest = node_.AddRandomShard(prng_, 5'000);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    auto stream = ConnectTo(node_);
    std::string bytes = Hello() + EncodeDataRequest({.op = DataOp::kManifest, .digest = digest});
    // Something in what was said so far changes, then comes noise.
    bytes[prng.Below(bytes.size())] ^= static_cast<char>(1 + prng.Below(255));
    Send(*stream, bytes);
    std::string header(kDataResponseBytes, '\0');
    if (!stream->ReadExactly(std::as_writable_bytes(std::span(header))).ok()) continue;
    const auto response = DecodeDataResponse(header);
    ASSERT_TRUE(response.ok());
    EXPECT_NE(response->code, Code::kOk);
  }
}

TEST(DataServer, APeerThatTricklesItsRequestIsCutOff) {
  DataPortOptions options;
  options.stall_limit = 200ms;
  auto closed = std::make_shared<ClosedSink>();
  PeerNode node("node", options, Logger(closed));
  auto stream = ConnectTo(node);
  // A byte now and then, far within the stall limit of one read; the whole takes too long.
  const std::string hello(kDataPreambleBytes - 1, 'T');
  bool cut = false;
  for (size_t i = 0; i < hello.size() && !cut; ++i) {
    (void)stream->WriteAll(AsBytes(hello).subspan(i, 1));
    cut = closed->WaitFor(50ms);
  }
  EXPECT_TRUE(cut);
  std::byte byte;
  EXPECT_FALSE(stream->ReadExactly({&byte, 1}).ok());
  EXPECT_GE(node.server().rejected(), 1u);
}

TEST(DataServer, AnIdleConnectionIsClosed) {
  DataPortOptions options;
  options.stall_limit = 50ms;
  PeerNode node("node", options);
  auto stream = ConnectTo(node);
  ExpectClosed(*stream);
}

TEST(DataServer, APeerThatDoesNotReadIsCutOff) {
  DataPortOptions options;
  options.stall_limit = 100ms;
  auto closed = std::make_shared<ClosedSink>();
  PeerNode node("node", options, Logger(closed));
  Prng prng(1);
  const std::string content = prng.Bytes(16 << 20);
  Manifest manifest;
  manifest.entries.resize(1);
  manifest.entries[0].bytes = content.size();
  for (size_t at = 0; at < content.size(); at += kChunkBytes) {
    manifest.entries[0].chunks.push_back(
        {.bytes = kChunkBytes, .digest = ComputeXxh128(AsBytes(content).subspan(at, kChunkBytes))});
  }
  const Blake3 digest = node.AddShard(manifest, {content});
  auto stream = ConnectTo(node);
  // More than the sockets' buffers hold, so that the server has to wait for the peer.
  std::string requests = EncodeDataPreamble(node.token());
  for (int i = 0; i < 32; ++i) {
    requests +=
        EncodeDataRequest({.op = DataOp::kChunks, .digest = digest, .first = 0, .count = 2});
  }
  Send(*stream, requests);
  ASSERT_TRUE(closed->WaitFor(60s)) << "it goes on waiting";
  EXPECT_LT(node.server().bytes_sent(), 32 * content.size());
}

TEST(DataServer, MoreConnectionsThanAllowedWaitForTheirTurn) {
  DataPortOptions options;
  options.connections_max = 2;
  PeerNode node("node", options);
  Prng prng(1);
  const Blake3 digest = node.AddRandomShard(prng, 5'000);
  const std::string hello = EncodeDataPreamble(node.token()) +
                            EncodeDataRequest({.op = DataOp::kManifest, .digest = digest});
  std::vector<std::unique_ptr<Stream>> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(ConnectTo(node));
    Send(*held.back(), hello);
    EXPECT_EQ(ReadResponse(*held.back()).code, Code::kOk);
  }
  auto third = ConnectTo(node);
  Send(*third, hello);
  // Answered only because the first goes away: until then no more than two answers have left. (The
  // server counts one when it is sent, which may be after we have read it.)
  const uint64_t answer = kDataResponseBytes + node.store().Find(digest)->encoded->size();
  EXPECT_LE(node.server().bytes_sent(), 2 * answer);
  held.erase(held.begin());
  EXPECT_EQ(ReadResponse(*third).code, Code::kOk);
}

// All places are taken by connections that say nothing, and more of them wait: a member is served
// long before the first of them is given up.
TEST(DataServer, D2_StrangersKeepNoMemberOut) {
  DataPortOptions options;
  options.connections_max = 4;
  options.stall_limit = 1h;
  PeerNode node("node", options);
  Prng prng(1);
  const Blake3 digest = node.AddRandomShard(prng, 5'000);
  const std::string hello = EncodeDataPreamble(node.token()) +
                            EncodeDataRequest({.op = DataOp::kManifest, .digest = digest});
  auto first = ConnectTo(node);
  Send(*first, hello);
  const DataResponse answer = ReadResponse(*first);
  EXPECT_EQ(answer.code, Code::kOk);
  ReadBytes(*first, answer.body_bytes);
  std::vector<std::unique_ptr<Stream>> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(ConnectTo(node));
  auto member = ConnectTo(node);
  Send(*member, hello);
  EXPECT_EQ(ReadResponse(*member).code, Code::kOk);
  EXPECT_GE(node.server().rejected(), 16u);
  // Who had been let in is served on.
  Send(*first, EncodeDataRequest({.op = DataOp::kManifest, .digest = digest}));
  EXPECT_EQ(ReadResponse(*first).code, Code::kOk);
}

TEST(DataServer, StoppingEndsThoseThatWaitToo) {
  DataPortOptions options;
  options.connections_max = 1;
  PeerNode node("node", options);
  auto first = ConnectTo(node);
  auto second = ConnectTo(node);
  node.StopServer();
  ExpectClosed(*first);
  std::byte byte;
  EXPECT_FALSE(second->ReadExactly({&byte, 1}).ok());
}

TEST(DataServer, TheBandwidthLimitHolds) {
  constexpr uint64_t kBytes = 1'000'000;
  DataPortOptions options;
  options.bytes_per_second_max = 4 * kBytes;
  PeerNode from("from", options);
  PeerNode to("to");
  Prng prng(1);
  const Blake3 digest = from.AddRandomShard(prng, kBytes);
  Puller puller(&to.store(), &to.clock(), {}, Logger());
  const PullResult result = puller.Pull({.digest = digest, .sources = {from.Source()}}, nullptr);
  ASSERT_TRUE(result.status.ok());
  // All but the last piece has been paid off by then.
  EXPECT_GT(result.took, 200ms);
}

TEST(DataServer, StoppingEndsConnectionsInTheMiddle) {
  PeerNode node("node");
  Prng prng(1);
  const Blake3 digest = node.AddRandomShard(prng, 5'000);
  auto stream = ConnectTo(node);
  Send(*stream, EncodeDataPreamble(node.token()) +
                    EncodeDataRequest({.op = DataOp::kManifest, .digest = digest}));
  (void)ReadBytes(*stream, ReadResponse(*stream).body_bytes);
  node.StopServer();
  ExpectClosed(*stream);
}

}  // namespace
}  // namespace tierkeep
