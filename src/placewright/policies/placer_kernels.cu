// CUDA kernels of the seq2seq placer's rollout, compiled by NVRTC when they are first used.
//
// Each thread is alone: no shared memory and no atomics, so that results do not depend on the order
// of threads, and a host can run the threads one after the other (a test does). Arrays are float32,
// dense and row-major but where a stride is named. A score of the additive attention is
// -2 Σ match · r with r = 1 / (1 + e^2q e^2k): match · tanh(q + k) less a constant of the step, which
// the softmax does not see. `keys` are padded to a multiple of 8: `real_keys` are not padding.

#define MAX_EXPONENT 86.0f  // e^86 and its inverse are float32

namespace {

__device__ __forceinline__ float reciprocal_of_sum(float query, float key) {
  return __fdividef(1.0f, fmaf(query, key, 1.0f));  // 0 where the sum is too large for float32
}

__device__ __forceinline__ float sigmoid(float value) { return 1.0f / (1.0f + expf(-value)); }

__device__ __forceinline__ float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }

__device__ __forceinline__ long long thread_index() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}

}  // namespace

// Scores of rows × keys, and e^2q of rows × hidden. Threads: rows × keys / 8.
// `double_query` is 2q, rows with a stride.
extern "C" __global__ void attention_scores(const float* double_query, const float* exp_key, const float* match,
                                            float* scores, float* exp_query, int rows, int keys, int real_keys,
                                            int hidden, int query_stride) {
  const long long index = thread_index();
  if (index >= static_cast<long long>(rows) * (keys / 8)) return;
  const long long row = index % rows;
  const int first = static_cast<int>(index / rows) * 8;
  const float* query = double_query + row * query_stride;
  float sum[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  for (int h = 0; h < hidden; h += 4) {
    const float4 q = load4(query + h), m = load4(match + h);
    const float exponents[4] = {q.x, q.y, q.z, q.w}, weight[4] = {m.x, m.y, m.z, m.w};
    float e[4];
    for (int i = 0; i < 4; ++i) e[i] = expf(fminf(fmaxf(exponents[i], -MAX_EXPONENT), MAX_EXPONENT));
    if (first == 0) {
      for (int i = 0; i < 4; ++i) exp_query[row * hidden + h + i] = e[i];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float4 key = load4(exp_key + static_cast<long long>(first + j) * hidden + h);
      sum[j] = fmaf(weight[0], reciprocal_of_sum(e[0], key.x), sum[j]);
      sum[j] = fmaf(weight[1], reciprocal_of_sum(e[1], key.y), sum[j]);
      sum[j] = fmaf(weight[2], reciprocal_of_sum(e[2], key.z), sum[j]);
      sum[j] = fmaf(weight[3], reciprocal_of_sum(e[3], key.w), sum[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    scores[row * keys + first + j] = first + j < real_keys ? -2.0f * sum[j] : __int_as_float(0xff800000);  // -infinity
  }
}

// Gradients of queries q, for two losses: steps × 2 × batch × hidden, from those of the scores, steps × 2 ×
// batch × keys. Threads: steps · batch × hidden / 8.
extern "C" __global__ void attention_query_gradient(const float* exp_query, const float* exp_key, const float* match,
                                                    const float* score_gradient, float* query_gradient, int steps,
                                                    int batch, int keys, int hidden) {
  const long long index = thread_index(), rows = static_cast<long long>(steps) * batch;
  if (index >= rows * (hidden / 8)) return;
  const long long row = index % rows, step = row / batch, episode = row % batch;
  const int first = static_cast<int>(index / rows) * 8;
  const float4 low = load4(exp_query + row * hidden + first), high = load4(exp_query + row * hidden + first + 4);
  const float e[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const long long one = (step * 2) * batch + episode, two = one + batch;
  float of_one[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  float of_two[8] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
  for (int j = 0; j < keys; j += 4) {
    const float4 a = load4(score_gradient + one * keys + j), b = load4(score_gradient + two * keys + j);
    const float first_loss[4] = {a.x, a.y, a.z, a.w}, second_loss[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* key = exp_key + static_cast<long long>(j + i) * hidden + first;
      const float4 k_low = load4(key), k_high = load4(key + 4);
      const float k[8] = {k_low.x, k_low.y, k_low.z, k_low.w, k_high.x, k_high.y, k_high.z, k_high.w};
#pragma unroll
      for (int h = 0; h < 8; ++h) {
        const float r = reciprocal_of_sum(e[h], k[h]), slope = fmaf(-r, r, r);
        of_one[h] = fmaf(first_loss[i], slope, of_one[h]);
        of_two[h] = fmaf(second_loss[i], slope, of_two[h]);
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 8; ++h) {
    const float weight = 4.0f * match[first + h];
    query_gradient[one * hidden + first + h] = weight * of_one[h];
    query_gradient[two * hidden + first + h] = weight * of_two[h];
  }
}

// Sums over a part of the rows, for two losses: Σ g r (1 - r), of which keys' gradients are made, and Σ g r, of
// which match's are: parts × 2 × 2 × keys × hidden, the losses before the kind of sum. A part is of one step; it has
// `part_rows` episodes, the last of a step fewer. Threads: parts × keys / 4 × hidden / 4.
extern "C" __global__ void attention_key_sums(const float* exp_query, const float* exp_key,
                                              const float* score_gradient, float* sums, int steps, int batch, int keys,
                                              int hidden, int part_rows) {
  const int across = hidden / 4, tiles = keys / 4 * across, step_parts = (batch + part_rows - 1) / part_rows;
  const long long index = thread_index(), part = index / tiles;
  if (part >= static_cast<long long>(steps) * step_parts) return;
  const int tile = static_cast<int>(index % tiles), first_key = tile / across * 4, first = tile % across * 4;
  const long long step = part / step_parts;
  const int begin = static_cast<int>(part % step_parts) * part_rows;
  const int end = begin + part_rows < batch ? begin + part_rows : batch;
  float key[4][4];
  for (int j = 0; j < 4; ++j) {
    const float4 k = load4(exp_key + static_cast<long long>(first_key + j) * hidden + first);
    key[j][0] = k.x, key[j][1] = k.y, key[j][2] = k.z, key[j][3] = k.w;
  }
  float slopes[2][4][4] = {}, reciprocals[2][4][4] = {};
  for (int episode = begin; episode < end; ++episode) {
    const long long one = step * 2 * batch + episode, two = one + batch;
    const float4 q = load4(exp_query + (step * batch + episode) * hidden + first);
    const float4 a = load4(score_gradient + one * keys + first_key), b = load4(score_gradient + two * keys + first_key);
    const float e[4] = {q.x, q.y, q.z, q.w};
    const float gradient[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        const float r = reciprocal_of_sum(e[h], key[j][h]), slope = fmaf(-r, r, r);
#pragma unroll
        for (int loss = 0; loss < 2; ++loss) {
          slopes[loss][j][h] = fmaf(gradient[loss][j], slope, slopes[loss][j][h]);
          reciprocals[loss][j][h] = fmaf(gradient[loss][j], r, reciprocals[loss][j][h]);
        }
      }
    }
  }
  const long long size = static_cast<long long>(keys) * hidden;
#pragma unroll
  for (int loss = 0; loss < 2; ++loss) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        float* to = sums + (part * 4 + loss * 2) * size + static_cast<long long>(first_key + j) * hidden + first + h;
        to[0] = slopes[loss][j][h];
        to[size] = reciprocals[loss][j][h];
      }
    }
  }
}

// One step of an LSTM: gates (input, forget, cell, output), cell and hidden state, batch × hidden each, from
// `state_gates`, batch × 4 hidden with a stride, and the row of `input_gates` that `choice` names.
// Threads: batch × hidden.
extern "C" __global__ void lstm_forward(const float* state_gates, const float* input_gates, const long long* choice,
                                        const float* previous_cell, float* gates, float* cell, float* hidden_state,
                                        int batch, int hidden, int gate_stride) {
  const long long index = thread_index();
  if (index >= static_cast<long long>(batch) * hidden) return;
  const long long row = index / hidden;
  const int h = static_cast<int>(index % hidden);
  const float* state = state_gates + row * gate_stride + h;
  const float* input = input_gates + choice[row] * 4 * hidden + h;
  const float admit = sigmoid(state[0] + input[0]), keep = sigmoid(state[hidden] + input[hidden]);
  const float value = tanhf(state[2 * hidden] + input[2 * hidden]), emit = sigmoid(state[3 * hidden] + input[3 * hidden]);
  float* to = gates + row * 4 * hidden + h;
  to[0] = admit, to[hidden] = keep, to[2 * hidden] = value, to[3 * hidden] = emit;
  const float c = fmaf(keep, previous_cell[index], admit * value);
  cell[index] = c;
  hidden_state[index] = emit * tanhf(c);
}

// Its gradients for several losses: of the gates before their functions, losses × batch × 4 hidden, and, in place, of
// the cell: that after the step becomes that before it. Threads: losses × batch × hidden.
extern "C" __global__ void lstm_backward(const float* hidden_gradient, float* cell_gradient, const float* gates,
                                         const float* cell, const float* previous_cell, float* gate_gradient, int losses,
                                         int batch, int hidden) {
  const long long index = thread_index(), size = static_cast<long long>(batch) * hidden;
  if (index >= losses * size) return;
  const long long at = index % size, row = at / hidden;
  const int h = static_cast<int>(at % hidden);
  const float* gate = gates + row * 4 * hidden + h;
  const float admit = gate[0], keep = gate[hidden], value = gate[2 * hidden], emit = gate[3 * hidden];
  const float squashed = tanhf(cell[at]), of_hidden = hidden_gradient[index];
  const float of_cell = fmaf(of_hidden * emit, 1.0f - squashed * squashed, cell_gradient[index]);
  float* to = gate_gradient + (index / hidden) * 4 * hidden + h;
  to[0] = of_cell * value * admit * (1.0f - admit);
  to[hidden] = of_cell * previous_cell[at] * keep * (1.0f - keep);
  to[2 * hidden] = of_cell * admit * (1.0f - value * value);
  to[3 * hidden] = of_hidden * squashed * emit * (1.0f - emit);
  cell_gradient[index] = of_cell * keep;
}
