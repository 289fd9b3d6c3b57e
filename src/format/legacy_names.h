// The content names that the reference gave to what it stored, computed only to check its data (our
// own names: VolumeDataName() of format/manifest.h). Pure functions, no I/O.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "format/ocdbt.h"

namespace tierkeep {

// The reference's name of a file: BLAKE3-256 of its contents, 64 lower-case hex digits.
std::string LegacyFileName(const Blake3& contents);

// The reference's name of a directory from the names of its children (files' and directories'
// names as here, in any order): `D` and the BLAKE3 of the sorted names joined by line feeds. The
// children's file names do not count, so two different trees may share a name.
std::string LegacyDirectoryName(std::vector<std::string> children);

// LegacyDirectoryName of a tree given as a flat list of paths. One thread at a time.
class LegacyTreeName {
 public:
  // Paths are relative to the tree's root, '/' between components. Parents are implied; a directory
  // needs naming only when it is empty.
  void AddDirectory(std::string_view path);
  void AddFile(std::string_view path, const Blake3& contents);
  std::string Finish() const;

 private:
  struct Node {
    std::map<std::string, Node, std::less<>> children;
    std::string file_name;  // empty for directories
  };
  Node& At(std::string_view path);
  static std::string NameOf(const Node& node);
  Node root_;
};

// The reference's name of a directory that holds OCDBT: `D` and the BLAKE3 of one line a key, in
// key order: the key as Python prints a bytes object, TAB, BLAKE3 of the stored value in hex, LF.
// The reference takes the first immediate subdirectory with a manifest.ocdbt in directory order,
// so with several items any of their names may be the right one. One thread at a time.
class LegacyTensorStoreName {
 public:
  // Keys in strictly increasing order (TK_CHECK).
  void Add(std::string_view key, const Blake3& value);
  std::string Finish() const;

 private:
  Blake3Hasher hasher_;
  std::string last_key_;
  bool any_ = false;
};

// Lists the database and hashes every value, one after the other. Errors as of ListOcdbt.
Result<std::string> ComputeLegacyTensorStoreName(OcdbtFiles& files, const std::string& database_dir,
                                                 const OcdbtLimits& limits = {});

// repr() of a Python bytes object; pure ASCII.
std::string PythonBytesRepr(std::string_view bytes);

}  // namespace tierkeep
