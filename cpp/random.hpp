// Random numbers that are the same everywhere, whatever the compiler.
#pragma once

#include <cstdint>

namespace placewright {

// xoshiro256++ (Blackman and Vigna 2019), seeded by splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) {
      uint64_t z = (seed += 0x9e3779b97f4a7c15ULL);
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
      word = z ^ (z >> 31);
    }
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  int below(int count) { return static_cast<int>((static_cast<unsigned __int128>(next()) * uint64_t(count)) >> 64); }
  // 1, 2, 3, … each half as likely as the one before.
  int geometric() {
    int count = 1;
    while (count < 60 && (next() >> 63)) ++count;
    return count;
  }

 private:
  static uint64_t rotate_left(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }
  uint64_t next() {
    uint64_t* s = state_;
    const uint64_t result = rotate_left(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0], s[3] ^= s[1], s[1] ^= s[2], s[0] ^= s[3], s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
  }
  uint64_t state_[4];
};

}  // namespace placewright
