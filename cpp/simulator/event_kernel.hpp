// The event-driven kernel: simulates one plan's step time and memory peaks (and a full record).
// It follows the rules of src/placewright/simulator/reference.py and agrees with it bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simulator/event_queue.hpp"
#include "problem_layout.hpp"

namespace placewright {

// What happened in one step, kept on request.
struct Record {
  struct Transfer {
    int32_t tensor, source, target, channel, reader;
    double start, end;
  };
  struct MemoryUse {
    int32_t device;
    double time;
    int64_t used;
  };
  std::vector<double> start, end;  // ops
  std::vector<Transfer> transfers;
  std::vector<MemoryUse> memory;
};

class EventKernel {
 public:
  explicit EventKernel(const ProblemLayout& layout);

  // After the layout has changed: resizes buffers for its ops and tensors. Devices and channels stay.
  void resize_buffers();

  // Returns the step time; peak() then holds each device's peak. `record` may be null.
  double run(const PlanView& plan, bool in_order, Record* record);
  const std::vector<int64_t>& peak() const { return peak_; }

 private:
  // A first-in, first-out queue; entries of one instant are sorted by key.
  struct Queue {
    int32_t head = 0, tail = 0, batch_begin = 0;  // `batch_begin`: where those of `time` begin
    double time = -1.0;
  };
  struct Stream {  // the transfer of a streamed weight to one reader
    double requested_at;
    int32_t rank, at, tensor, source, target, reader;
    double remaining;
    bool operator<(const Stream& other) const;  // for std heaps: true when served later
  };
  struct Copy {  // a tensor for another device
    int32_t tensor, source, target, channel;
    int32_t first_read;  // a chain through next_read_, -1 at its end
    double seconds;
    int64_t bytes;
  };
  struct ChannelStreams {  // the streamed weights of one channel
    bool paused = false;
    Stream current;  // in transfer or paused
    std::vector<Stream> waiting;
  };
  struct StagingBuffer {  // streamed weights of one device, in the order in which they are staged
    std::vector<Stream> requests;
    std::size_t next = 0;
    int64_t remaining = 0;
  };
  static constexpr int32_t kIdle = -1, kStream = -2;

  template <bool InOrder, bool Recording> double simulate(const PlanView& plan);
  void prepare(const PlanView& plan, bool in_order);
  void prepare_tensor(const PlanView& plan, int tensor);
  void prepare_aliases();
  void prepare_streams(const PlanView& plan);
  template <bool InOrder> void begin();
  template <bool InOrder> void finish_op(int op, int place);
  template <bool InOrder> void arrive(int channel);
  template <bool InOrder> void produce(int tensor);
  template <bool InOrder> void input_arrived(int op);
  template <bool InOrder> void enqueue_ready(int op);
  template <bool InOrder> void start_op(int place);
  void start_transfer(int channel);
  void enqueue_copy(int copy);
  void fill_staging(int place);
  void release(int storage);
  void allocate(int place, int64_t bytes);
  void record_memory();
  void record_stream(int channel);
  double duration(int source, int target, int tensor) const {
    return a_.transfer[std::size_t(a_.link_class[source * a_.devices + target]) * a_.tensors + tensor];
  }

  const ProblemLayout& a_;
  PlanView plan_{};
  Record* record_ = nullptr;
  double now_ = 0.0, step_time_ = 0.0;
  int unfinished_ = 0, copies_ = 0;
  bool streaming_ = false;
  PlanOrder plan_order_;
  std::vector<int32_t> order_;

  // Storage s is tensor s on its producer's device, or copy s - tensors on another device.
  std::vector<int32_t> uses_, parent_;
  std::vector<Copy> copy_;
  std::vector<int32_t> first_copy_;                    // tensors + 1
  std::vector<int32_t> storage_of_read_;               // readers: where that reader finds the tensor, -1 streamed
  std::vector<int32_t> newest_copy_;                   // devices, while laying out
  std::vector<int32_t> first_local_read_, next_read_;  // tensors; readers

  std::vector<int32_t> missing_inputs_;  // ops
  std::vector<int32_t> running_;         // devices
  std::vector<Queue> device_queue_;      // devices: in order or ready
  std::vector<int32_t> queue_;           // the ops in those queues
  std::vector<int32_t> sending_;         // channels: a copy, kStream or kIdle
  std::vector<double> sending_since_;    // channels
  std::vector<ChannelStreams> streams_;  // channels
  std::vector<Queue> channel_queue_;     // channels
  std::vector<int32_t> send_queue_;      // the copies in those queues
  std::vector<StagingBuffer> staging_;
  std::vector<int64_t> staged_bytes_;  // ops
  std::vector<double> issuer_free_at_;

  std::vector<int64_t> used_, peak_, recorded_;  // devices
  EventQueue device_ends_;                       // devices, then issuers
  EventQueue channel_ends_;                      // channels
  std::vector<int32_t> awake_devices_, awake_channels_;
  std::vector<int32_t> awake_;  // devices, then channels (not bytes: those alias)
  // A busy device or channel is woken again when it has finished.
  void wake_device(int place) {
    if (!awake_[place]) awake_[place] = 1, awake_devices_.push_back(place);
  }
  void wake_channel(int channel) {
    if (!awake_[a_.devices + channel])
      awake_[a_.devices + channel] = 1, awake_channels_.push_back(channel);
  }
};

}  // namespace placewright
