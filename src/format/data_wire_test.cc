#include "format/data_wire.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace tierkeep {
namespace {

Blake3 SomeDigest() {
  Blake3 digest;
  for (size_t i = 0; i < digest.bytes.size(); ++i) digest.bytes[i] = static_cast<uint8_t>(i + 1);
  return digest;
}

TEST(DataWire, RequestsHaveTheDocumentedBytes) {
  const std::string bytes = EncodeDataRequest(
      {.op = DataOp::kChunks, .digest = SomeDigest(), .first = 0x0102030405060708, .count = 3});
  EXPECT_EQ(ToHex(AsBytes(bytes)),
            "0200000000000000"
            "0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f20"
            "0102030405060708"
            "0000000000000003");
}

TEST(DataWire, ResponsesHaveTheDocumentedBytes) {
  EXPECT_EQ(ToHex(AsBytes(EncodeDataResponse({.body_bytes = 0x1122}))),
            "00000000000000000000000000001122");
  EXPECT_EQ(ToHex(AsBytes(EncodeDataResponse({.code = Code::kNotFound, .text_bytes = 7}))),
            "05000000000000070000000000000000");
}

TEST(DataWire, PreambleShowsMagicAndToken) {
  const std::string token(kDataTokenBytes, 't');
  const std::string preamble = EncodeDataPreamble(token);
  ASSERT_EQ(preamble.size(), kDataPreambleBytes);
  EXPECT_TRUE(HasDataMagic(preamble));
  EXPECT_TRUE(HasDataToken(preamble, token));
  for (size_t i = 0; i < preamble.size(); ++i) {
    std::string other = preamble;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_EQ(HasDataMagic(other), i >= kDataMagic.size());
    EXPECT_EQ(HasDataToken(other, token), i < kDataMagic.size());
  }
  EXPECT_FALSE(HasDataToken(preamble, ""));
}

TEST(DataWire, WhatIsEncodedReadsBack) {
  Prng prng(7);
  for (int i = 0; i < 1000; ++i) {
    DataRequest request{.op = static_cast<DataOp>(1 + prng.Below(3)),
                        .digest = *Blake3::FromBytes(prng.Bytes(32))};
    if (request.op == DataOp::kChunks) {
      request.first = prng.Next() >> 1;
      request.count = 1 + (prng.Next() >> 2);
    }
    const auto back = DecodeDataRequest(EncodeDataRequest(request));
    ASSERT_TRUE(back.ok()) << back.error().ToString();
    ASSERT_EQ(*back, request);
  }
}

TEST(DataWire, BrokenRequestsAreRefused) {
  const std::string good = EncodeDataRequest({.op = DataOp::kChunks, .first = 1, .count = 1});
  ASSERT_TRUE(DecodeDataRequest(good).ok());
  const auto refuses = [](std::string bytes) {
    const auto decoded = DecodeDataRequest(bytes);
    return !decoded.ok() && decoded.error().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refuses(good.substr(1)));
  EXPECT_TRUE(refuses(good + "x"));
  EXPECT_TRUE(refuses("\x04" + good.substr(1))) << "unknown operation";
  EXPECT_TRUE(refuses(std::string(1, '\0') + good.substr(1)));
  EXPECT_TRUE(refuses("\x01" + good.substr(1))) << "a manifest with a range";
  EXPECT_TRUE(refuses("\x03" + good.substr(1))) << "a listing with a range";
  EXPECT_TRUE(refuses(good.substr(0, 48) + std::string(8, '\0'))) << "no chunk";
  EXPECT_TRUE(refuses(good.substr(0, 40) + std::string(16, '\xff'))) << "overflow";
  for (size_t i = 1; i < 8; ++i) {
    std::string reserved = good;
    reserved[i] = 1;
    EXPECT_TRUE(refuses(reserved));
  }
}

TEST(DataWire, BrokenResponsesAreRefused) {
  const auto refuses = [](std::string bytes) {
    const auto decoded = DecodeDataResponse(bytes);
    return !decoded.ok() && decoded.error().code() == Code::kDataLoss;
  };
  const std::string good = EncodeDataResponse({.body_bytes = 5});
  ASSERT_TRUE(DecodeDataResponse(good).ok());
  EXPECT_TRUE(refuses(good.substr(1)));
  EXPECT_TRUE(refuses("\x05" + good.substr(1))) << "an error with a body";
  EXPECT_TRUE(refuses("\x20" + good.substr(1))) << "unknown code";
  std::string long_text = EncodeDataResponse({.code = Code::kNotFound, .text_bytes = 512});
  ASSERT_TRUE(DecodeDataResponse(long_text).ok());
  long_text[7] = 1;  // 513
  EXPECT_TRUE(refuses(long_text));
}

}  // namespace
}  // namespace tierkeep
