// A heap of busy slots (devices, issuers or channels) by the time at which each becomes free.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace placewright {

class EventQueue {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  explicit EventQueue(int slots) : heap_(std::size_t(slots) + 2) { clear(); }

  void clear() {
    size_ = 0;
    heap_[1] = kEmpty;
  }

  double next() const { return std::bit_cast<double>(heap_[1].time); }  // kNever when all are idle

  void add(int slot, double end) {
    sift_up(++size_, {std::bit_cast<uint64_t>(end), static_cast<uint64_t>(slot)});
  }

  // Takes off a slot that ends at next().
  int pop() {
    const int slot = static_cast<int>(heap_[1].slot);
    remove(1);
    return slot;
  }

  // Takes off a slot before its end, and says when that would have been.
  double cancel(int slot) {
    std::size_t at = 1;
    while (heap_[at].slot != static_cast<uint64_t>(slot)) ++at;
    const double end = std::bit_cast<double>(heap_[at].time);
    remove(at);
    return end;
  }

 private:
  // Times are never negative, so their bits compare as they do, and without branches.
  struct Node {
    uint64_t time, slot;
  };
  static constexpr Node kEmpty{std::bit_cast<uint64_t>(kNever), 0};

  void sift_up(std::size_t at, Node node) {
    for (; at > 1 && node.time < heap_[at / 2].time; at /= 2) heap_[at] = heap_[at / 2];
    heap_[at] = node;
  }

  // The hole goes to the bottom by the earlier child each time, and the last node rises from there.
  void remove(std::size_t at) {
    const Node last = heap_[size_--];
    if (size_ == 0) {
      heap_[1] = kEmpty;
      return;
    }
    if (at > size_) return;
    std::size_t child = 2 * at;
    for (; child < size_; child *= 2) {
      child += heap_[child + 1].time < heap_[child].time;
      heap_[at] = heap_[child];
      at = child;
    }
    if (child == size_) {
      heap_[at] = heap_[child];
      at = child;
    }
    sift_up(at, last);
  }

  std::size_t size_ = 0;
  std::vector<Node> heap_;  // from 1 on; node i ends no later than nodes 2i and 2i + 1
};

}  // namespace placewright
