#include "policies/additive_attention.hpp"

#include <algorithm>

#include "clones.hpp"

namespace placewright {
namespace {

constexpr int64_t B = AdditiveAttention::kBlock;

// Scores of one query and the keys of one row.
PLACEWRIGHT_CLONES void score_query(const float* query, const float* key, const float* match, int64_t hidden,
                                    int64_t keys, float match_sum, float* scores) {
  for (int64_t first = 0; first < keys; first += B, key += hidden * B) {
    alignas(64) float sums[B] = {};
    for (int64_t h = 0; h < hidden; ++h) {
      const float q = query[h], weight = match[h];
      for (int64_t l = 0; l < B; ++l) sums[l] += weight / (1.0f + q * key[h * B + l]);
    }
    const int64_t count = std::min(B, keys - first);
    for (int64_t l = 0; l < count; ++l) scores[first + l] = match_sum - 2.0f * sums[l];
  }
}

// Adds up, for one query: of each key what it adds to the key's gradient, and of each hidden unit, lane by lane, what
// it adds to the query's and to the match's.
PLACEWRIGHT_CLONES void add_gradients(const float* query, const float* key, const float* score_gradient,
                                      int64_t hidden, int64_t blocks, float* key_sums, float* query_lanes,
                                      float* match_lanes) {
  std::fill(query_lanes, query_lanes + hidden * B, 0.0f);
  for (int64_t block = 0; block < blocks; ++block) {
    const float* gradient = score_gradient + block * B;
    for (int64_t h = 0; h < hidden; ++h) {
      const int64_t at = (block * hidden + h) * B;
      const float q = query[h];
      for (int64_t l = 0; l < B; ++l) {
        const float share = 1.0f / (1.0f + q * key[at + l]);  // (1 - tanh) / 2
        const float match = gradient[l] * share;
        const float slope = match - match * share;  // a quarter of 1 - tanh^2
        key_sums[at + l] += slope;
        query_lanes[h * B + l] += slope;
        match_lanes[h * B + l] += match;
      }
    }
  }
}

float sum_lanes(const float* lanes) {
  float sum = 0.0f;
  for (int64_t l = 0; l < B; ++l) sum += lanes[l];
  return sum;
}

}  // namespace

void attention_scores(const AdditiveAttention& a, float* scores) {
  const int64_t row_size = a.blocks() * a.hidden * B;
  float match_sum = 0.0f;
  for (int64_t h = 0; h < a.hidden; ++h) match_sum += a.match[h];
  for (int64_t episode = 0; episode < a.episodes; ++episode) {
    const float* key = a.key + a.row_of[episode] * row_size;
    for (int64_t at = episode * a.steps; at < (episode + 1) * a.steps; ++at)
      score_query(a.query + at * a.hidden, key, a.match, a.hidden, a.keys, match_sum, scores + at * a.keys);
  }
}

AttentionGradients attention_gradients(const AdditiveAttention& a, const float* score_gradient) {
  const int64_t blocks = a.blocks(), row_size = blocks * a.hidden * B;
  AttentionGradients result;
  result.query.resize(a.episodes * a.steps * a.hidden);
  result.key.resize(a.rows * row_size);
  result.match.resize(a.hidden);
  // Sums over the steps of an episode are added to sums over episodes: long sums would lose digits.
  std::vector<float> key_sums(row_size), query_lanes(a.hidden * B), match_lanes(a.hidden * B), padded(blocks * B);
  for (int64_t episode = 0; episode < a.episodes; ++episode) {
    const float* key = a.key + a.row_of[episode] * row_size;
    std::fill(key_sums.begin(), key_sums.end(), 0.0f);
    std::fill(match_lanes.begin(), match_lanes.end(), 0.0f);
    float gradient_sum = 0.0f;
    for (int64_t at = episode * a.steps; at < (episode + 1) * a.steps; ++at) {
      const float* gradient = score_gradient + at * a.keys;
      std::copy(gradient, gradient + a.keys, padded.begin());
      for (int64_t g = 0; g < a.keys; ++g) gradient_sum += gradient[g];
      add_gradients(a.query + at * a.hidden, key, padded.data(), a.hidden, blocks, key_sums.data(),
                    query_lanes.data(), match_lanes.data());
      for (int64_t h = 0; h < a.hidden; ++h)
        result.query[at * a.hidden + h] = 4.0f * a.match[h] * sum_lanes(query_lanes.data() + h * B);
    }
    float* key_gradient = result.key.data() + a.row_of[episode] * row_size;
    for (int64_t at = 0; at < row_size; ++at) key_gradient[at] += key_sums[at];
    for (int64_t h = 0; h < a.hidden; ++h)
      result.match[h] += gradient_sum - 2.0f * sum_lanes(match_lanes.data() + h * B);
  }
  for (int64_t at = 0; at < a.rows * row_size; ++at) result.key[at] *= 4.0f * a.match[at / B % a.hidden];
  return result;
}

}  // namespace placewright
