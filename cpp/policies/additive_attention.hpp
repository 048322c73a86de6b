// Scores of additive attention, match . tanh(query + key), and their gradients, without a tensor of all sums.
//
// tanh(q + k) = 1 - 2 / (1 + e^2q e^2k): exponentials are taken once for each query and each key, and a sum costs one
// division. Keys are packed in blocks of `kBlock`, so that a block's loop is one vector.
#pragma once

#include <cstdint>
#include <vector>

namespace placewright {

struct AdditiveAttention {
  static constexpr int64_t kBlock = 16;

  int64_t episodes, steps, hidden, keys, rows;
  const float* query;     // e^2q: episodes x steps x hidden
  const float* key;       // e^2k: rows x blocks x hidden x kBlock, padded with any number that is not negative
  const float* match;     // hidden
  const int64_t* row_of;  // episodes: whose keys each has

  int64_t blocks() const { return (keys + kBlock - 1) / kBlock; }
};

// Episodes x steps x keys.
void attention_scores(const AdditiveAttention& attention, float* scores);

struct AttentionGradients {
  std::vector<float> query;  // of q, not of its exponential: episodes x steps x hidden
  std::vector<float> key;    // of k: rows x blocks x hidden x kBlock
  std::vector<float> match;  // hidden
};

// Given the scores' gradient, episodes x steps x keys. Tanh is computed again instead of being stored.
AttentionGradients attention_gradients(const AdditiveAttention& attention, const float* score_gradient);

}  // namespace placewright
