#include "format/volume_texts.h"

#include <gtest/gtest.h>

namespace tierkeep {
namespace {

TEST(VolumeTexts, Prerestore) {
  EXPECT_EQ(PrerestoreText({}), "{}\n");
  EXPECT_EQ(PrerestoreText({7, std::nullopt}), "restore-step: 7\n");
  EXPECT_EQ(PrerestoreText({0, std::nullopt}), "restore-step: 0\n");
  EXPECT_EQ(PrerestoreText({120, "2026-11-29_18-05"}),
            "restore-step: 120\nrestore-backup: 2026-11-29_18-05\n");
}

TEST(VolumeTexts, BackupDirNames) {
  EXPECT_TRUE(IsBackupDirName("2026-11-29_18-05"));
  for (const char* bad : {"", "2026-11-29_18-0", "2026-11-29_18-055", "2026-11-29-18-05",
                          "2026-1a-29_18-05", "../../../../etc/", "2026-11-29_18-05/.."}) {
    EXPECT_FALSE(IsBackupDirName(bad)) << bad;
  }
}

TEST(VolumeTexts, JaxInitInfoReadsBack) {
  const JaxInitInfo info{3, "10.0.0.1:8476"};
  EXPECT_EQ(JaxInitInfoText(info), "3\n10.0.0.1:8476\n");
  const auto parsed = ParseJaxInitInfo(JaxInitInfoText(info));
  ASSERT_TRUE(parsed.ok()) << parsed.error().message();
  EXPECT_EQ(*parsed, info);
}

TEST(VolumeTexts, JaxInitInfoAllowsBlanks) {
  for (const char* text : {"3\nhost:1", "\n 3 \r\n\thost:1\n\n\n", "3\n\nhost:1\n"}) {
    const auto parsed = ParseJaxInitInfo(text);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message();
    EXPECT_EQ(*parsed, (JaxInitInfo{3, "host:1"}));
  }
  EXPECT_EQ(ParseJaxInitInfo("0\n[::1]:8476\n")->coordinator, "[::1]:8476");
}

TEST(VolumeTexts, OtherJaxInitInfoIsRefused) {
  for (const char* bad : {"", "3", "3\n", "host:1\n3\n", "-1\nhost:1\n", "03\nhost:1\n",
                          "3\nhost\n", "3\n:1\n", "3\nhost:0\n", "3\nhost:65536\n", "3\nho st:1\n",
                          "3\nhost:1\nmore\n", "4294967296\nh:1\n", "3\nhost\x1b:1\n"}) {
    EXPECT_FALSE(ParseJaxInitInfo(bad).ok()) << bad;
  }
  EXPECT_FALSE(ParseJaxInitInfo("3\nhost:1\n" + std::string(5000, '\n')).ok());
}

TEST(VolumeTexts, Meta) {
  const std::string h = "D" + std::string(64, '0');
  EXPECT_EQ(MetaText(h), h);
  EXPECT_EQ(ParseMetaText(h), h);
  EXPECT_EQ(ParseMetaText(h + "\n"), std::nullopt);
  EXPECT_EQ(ParseMetaText(""), std::nullopt);
}

}  // namespace
}  // namespace tierkeep
