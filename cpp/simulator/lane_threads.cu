// The GPU's lane kernels, compiled when they are first used: all that runs on a GPU alone.
#include "simulator/lane_threads.hpp"

extern "C" __global__ void __launch_bounds__(128) lane_times(const long long* table) {
  extern __shared__ long long state[];
  placewright::run_thread<false>(reinterpret_cast<const placewright::int64_t*>(table),
                                 static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x,
                                 reinterpret_cast<char*>(state), blockDim.x, threadIdx.x);
}

extern "C" __global__ void __launch_bounds__(128) lane_peaks(const long long* table) {
  extern __shared__ long long state[];
  placewright::run_thread<true>(reinterpret_cast<const placewright::int64_t*>(table),
                                static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x,
                                reinterpret_cast<char*>(state), blockDim.x, threadIdx.x);
}
