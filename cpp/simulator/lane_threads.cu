// The GPU's lane kernel, compiled when it is first used: all that runs on a GPU alone. `gpu_lanes.py` defines the macros.
#include "simulator/lane_threads.hpp"

extern "C" __global__ void __launch_bounds__(PLACEWRIGHT_BLOCK, PLACEWRIGHT_BLOCKS)
    lanes(const long long* table, const char* records, const unsigned char* place, unsigned int* arrival, int plans,
          int threads) {
  extern __shared__ uint4 state[];
  const placewright::LaneBatch batch{records, place, arrival, static_cast<unsigned int>(plans),
                                     static_cast<unsigned int>(threads)};
  placewright::run_thread<PLACEWRIGHT_PEAKS, PLACEWRIGHT_ONE_CHANNEL, PLACEWRIGHT_COUNT>(
      reinterpret_cast<const placewright::int64_t*>(table), batch, blockIdx.x * blockDim.x + threadIdx.x,
      reinterpret_cast<char*>(state), blockDim.x, threadIdx.x);
}
