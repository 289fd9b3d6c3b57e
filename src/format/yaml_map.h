// The top level of a small YAML text from an untrusted writer, every scalar left as text.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace tierkeep {

struct YamlValue {
  enum class Kind { kNull, kScalar, kList, kOther };  // kList: of scalars alone
  Kind kind = Kind::kNull;
  std::string text;                // kScalar
  std::vector<std::string> items;  // kList
};

// One document that is a map. Refused (kInvalidArgument, naming the line, never the content beyond
// a key): anchors, aliases and tags, keys that aren't text or come twice, more than 16 levels, a
// second document, anything that isn't YAML. Values deeper than a list are kOther, unread.
Result<std::map<std::string, YamlValue>> ParseYamlMap(std::string_view text);

}  // namespace tierkeep
