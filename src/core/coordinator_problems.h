// What is wrong with the job, by what it is about: part of its status.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace tierkeep {

class CoordinatorProblems {
 public:
  // Returns whether that was news.
  bool Set(const std::string& key, std::string text) {
    std::string& slot = problems_[key];
    if (slot == text) return false;
    slot = std::move(text);
    ++version_;
    return true;
  }
  void Erase(const std::string& key) { version_ += problems_.erase(key); }
  void ErasePrefix(const std::string& prefix) {
    version_ += std::erase_if(problems_,
                              [&](const auto& entry) { return entry.first.starts_with(prefix); });
  }
  void Clear() {
    version_ += problems_.size();
    problems_.clear();
  }

  auto begin() const { return problems_.begin(); }
  auto end() const { return problems_.end(); }
  size_t size() const { return problems_.size(); }
  uint64_t version() const { return version_; }  // another one after every change

 private:
  std::map<std::string, std::string> problems_;
  uint64_t version_ = 0;
};

}  // namespace tierkeep
