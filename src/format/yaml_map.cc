#include "format/yaml_map.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <optional>
#include <sstream>

#include "base/escape_name.h"

namespace tierkeep {
namespace {

constexpr int kDepthMax = 16;

// Follows the parser's events instead of building its tree: the tree would expand aliases and give
// scalars types. After the first fault the rest is ignored.
class MapReader : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Leaf(mark, "?", anchor, std::nullopt);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Refuse(mark, "aliases are not allowed");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Leaf(mark, tag, anchor, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlValue::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlValue::Kind::kOther);
  }
  void OnMapEnd() override { Close(); }

  const std::string& fault() const { return fault_; }
  std::map<std::string, YamlValue> TakeValues() { return std::move(values_); }

 private:
  void Refuse(const YAML::Mark& mark, std::string_view rule) {
    if (fault_.empty()) fault_ = fmt::format("line {}: {}", mark.line + 1, rule);
  }

  // A plain scalar's tag is "?", a quoted one's "!"; any other was written out.
  bool Plain(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) Refuse(mark, "anchors are not allowed");
    if (!tag.empty() && tag != "?" && tag != "!") Refuse(mark, "tags are not allowed");
    return fault_.empty();
  }

  void Leaf(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            const std::optional<std::string>& text) {
    if (!Plain(mark, tag, anchor)) return;
    if (depth_ == 0) return Refuse(mark, "it must be a map of keys and values");
    if (depth_ == 1 && current_ == nullptr) return Key(mark, text);
    if (depth_ == 1) {
      current_->kind = text ? YamlValue::Kind::kScalar : YamlValue::Kind::kNull;
      current_->text = text.value_or("");
      current_ = nullptr;
    } else if (depth_ == 2 && current_->kind == YamlValue::Kind::kList) {
      if (text) {
        current_->items.push_back(*text);
      } else {
        current_->kind = YamlValue::Kind::kOther;
      }
    }
  }

  void Key(const YAML::Mark& mark, const std::optional<std::string>& text) {
    if (!text) return Refuse(mark, "a key is missing");
    const auto [place, is_new] = values_.try_emplace(*text);
    if (!is_new) {
      return Refuse(mark, fmt::format("key '{}' is given twice", EscapeName(*text, 64)));
    }
    current_ = &place->second;
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlValue::Kind kind) {
    if (!Plain(mark, tag, anchor)) return;
    if (depth_ == 0 && kind == YamlValue::Kind::kList) {
      return Refuse(mark, "it must be a map of keys and values");
    }
    if (depth_ == 1 && current_ == nullptr) return Refuse(mark, "a key must be text");
    if (depth_ == 1) current_->kind = kind;
    if (depth_ == 2) current_->kind = YamlValue::Kind::kOther;
    if (++depth_ > kDepthMax) Refuse(mark, "it is nested too deeply");
  }

  void Close() {
    if (!fault_.empty()) return;
    if (--depth_ == 1) current_ = nullptr;
  }

  std::string fault_;
  std::map<std::string, YamlValue> values_;
  YamlValue* current_ = nullptr;  // the value that is being read; null: a key comes
  int depth_ = 0;
};

Error Refused(std::string text) { return Error(Code::kInvalidArgument, std::move(text)); }

}  // namespace

Result<std::map<std::string, YamlValue>> ParseYamlMap(std::string_view text) {
  MapReader reader;
  try {
    std::istringstream in{std::string(text)};
    YAML::Parser parser(in);
    if (!parser.HandleNextDocument(reader)) return Refused("it is empty");
    if (!reader.fault().empty()) return Refused(reader.fault());
    MapReader second;
    if (parser.HandleNextDocument(second)) return Refused("it has more than one document");
  } catch (const YAML::Exception& e) {
    if (!reader.fault().empty()) return Refused(reader.fault());
    // The library's own text may quote the file.
    return Refused(fmt::format("line {}: it is not valid YAML", e.mark.line + 1));
  } catch (const std::exception&) {
    return Refused("it is not valid YAML");
  }
  return reader.TakeValues();
}

}  // namespace tierkeep
