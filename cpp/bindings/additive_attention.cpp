// policies/_additive_attention: scores of additive attention and their gradients.
#include "policies/additive_attention.hpp"

#include <utility>

#include "numpy.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace placewright {
namespace {

using Tensor = nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

// Every number that is used as a position is checked here, so that the loops need not.
AdditiveAttention attention_of(const Cube<float>& query, const Tensor& key, const Row<float>& match,
                               const Row<int64_t>& row_of, int64_t keys) {
  AdditiveAttention a;
  a.episodes = query.shape(0), a.steps = query.shape(1), a.hidden = query.shape(2);
  a.keys = keys, a.rows = key.shape(0);
  a.query = query.data(), a.key = key.data(), a.match = match.data(), a.row_of = row_of.data();
  bool right = keys >= 0 && static_cast<int64_t>(key.shape(1)) == a.blocks() &&
               static_cast<int64_t>(key.shape(2)) == a.hidden && key.shape(3) == AdditiveAttention::kBlock &&
               static_cast<int64_t>(match.size()) == a.hidden && static_cast<int64_t>(row_of.size()) == a.episodes;
  for (int64_t episode = 0; right && episode < a.episodes; ++episode)
    right = a.row_of[episode] >= 0 && a.row_of[episode] < a.rows;
  if (!right) throw nb::value_error("attention was given arrays that do not match");
  return a;
}

}  // namespace
}  // namespace placewright

NB_MODULE(_additive_attention, m) {
  using namespace placewright;
  m.attr("BLOCK") = AdditiveAttention::kBlock;
  m.def(
      "scores",
      [](const Cube<float>& query, const Tensor& key, const Row<float>& match, const Row<int64_t>& row_of,
         int64_t keys) {
        const AdditiveAttention a = attention_of(query, key, match, row_of, keys);
        std::vector<float> scores(a.episodes * a.steps * a.keys);
        {
          nb::gil_scoped_release release;
          attention_scores(a, scores.data());
        }
        return to_numpy<float>(std::move(scores), {query.shape(0), query.shape(1), static_cast<size_t>(keys)});
      },
      "query"_a, "key"_a, "match"_a, "row_of"_a, "keys"_a);
  m.def(
      "gradients",
      [](const Cube<float>& query, const Tensor& key, const Row<float>& match, const Row<int64_t>& row_of,
         const Cube<float>& score_gradient) {
        const AdditiveAttention a =
            attention_of(query, key, match, row_of, static_cast<int64_t>(score_gradient.shape(2)));
        if (score_gradient.shape(0) != query.shape(0) || score_gradient.shape(1) != query.shape(1))
          throw nb::value_error("attention was given gradients that do not match its queries");
        AttentionGradients found;
        {
          nb::gil_scoped_release release;
          found = attention_gradients(a, score_gradient.data());
        }
        return nb::make_tuple(
            to_numpy<float>(std::move(found.query), {query.shape(0), query.shape(1), query.shape(2)}),
            to_numpy<float>(std::move(found.key), {key.shape(0), key.shape(1), key.shape(2), key.shape(3)}),
            to_numpy<float>(std::move(found.match), {match.size()}));
      },
      "query"_a, "key"_a, "match"_a, "row_of"_a, "score_gradient"_a);
}
