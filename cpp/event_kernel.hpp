// The event-driven kernel: one plan in, its step time and memory peaks (and a full record) out.
// It follows the rules of src/placewright/simulator/reference.py and agrees with it bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "agenda.hpp"
#include "layout.hpp"

namespace placewright {

// What happened in one step, kept on request.
struct Record {
  struct Transfer {
    int32_t tensor, source, target, channel, reader;
    double start, end;
  };
  struct Use {
    int32_t device;
    double time;
    int64_t used;
  };
  std::vector<double> start, end;  // ops
  std::vector<Transfer> transfers;
  std::vector<Use> memory;
};

class EventKernel {
 public:
  explicit EventKernel(const Layout& layout);

  // After the layout has changed: room for its ops and tensors. Devices and channels stay.
  void fit();

  // Returns the step time; peak() then holds each device's peak. `record` may be null.
  double run(const PlanView& plan, bool in_order, Record* record);
  const std::vector<int64_t>& peak() const { return peak_; }

 private:
  // A first-come queue in which what came at one instant stands in order of its own key.
  struct Queue {
    int32_t head = 0, tail = 0, together = 0;  // `together`: where those of `time` begin
    double time = -1.0;
  };
  struct Stream {  // a streamed weight on its way to one reader
    double handed;
    int32_t rank, at, tensor, source, target, reader;
    double left;
    bool operator<(const Stream& other) const;  // for std heaps: true when served later
  };
  struct Copy {  // a tensor for another device
    int32_t tensor, source, target, channel;
    int32_t first_read;  // a chain through next_read_, -1 at its end
    double takes;
    int64_t bytes;
  };
  struct Streams {  // the streamed weights of one channel
    bool paused = false;
    Stream current;  // under way or paused
    std::vector<Stream> waiting;
  };
  struct Room {  // streamed weights of one device, in the order in which they get room
    std::vector<Stream> wanted;
    std::size_t next = 0;
    int64_t left = 0;
  };
  static constexpr int32_t kNothing = -1, kStream = -2;

  template <bool InOrder, bool Recording> double simulate(const PlanView& plan);
  void lay_out(const PlanView& plan, bool in_order);
  void lay_out_tensor(const PlanView& plan, int tensor);
  void lay_out_aliases();
  void lay_out_streams(const PlanView& plan);
  template <bool InOrder> void begin();
  template <bool InOrder> void end_op(int op, int place);
  template <bool InOrder> void arrive(int channel);
  template <bool InOrder> void make(int tensor);
  template <bool InOrder> void one_less(int op);
  template <bool InOrder> void become_ready(int op);
  template <bool InOrder> void start_op(int place);
  void start_transfer(int channel);
  void hand_over(int copy);
  void reserve(int place);
  void release(int storage);
  void allocate(int place, int64_t bytes);
  void look();
  void note_stream(int channel);
  double duration(int source, int target, int tensor) const {
    return a_.transfer[std::size_t(a_.link_class[source * a_.devices + target]) * a_.tensors + tensor];
  }

  const Layout& a_;
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
  std::vector<int32_t> first_copy_;  // tensors + 1
  std::vector<int32_t> storage_of_read_;  // readers: where that reader finds the tensor, -1 streamed
  std::vector<int32_t> newest_copy_;      // devices, while laying out
  std::vector<int32_t> first_local_read_, next_read_;  // tensors; readers

  std::vector<int32_t> missing_;                  // ops
  std::vector<int32_t> running_;                  // devices
  std::vector<Queue> line_;                       // devices: in order or ready
  std::vector<int32_t> lined_;                    // the ops in those lines
  std::vector<int32_t> sending_;                  // channels: a copy, kStream or kNothing
  std::vector<double> sending_since_;             // channels
  std::vector<Streams> streams_;                  // channels
  std::vector<Queue> sends_;                      // channels
  std::vector<int32_t> sent_;                     // the copies in those queues
  std::vector<Room> room_;
  std::vector<int64_t> held_;                     // ops
  std::vector<double> issuer_free_;

  std::vector<int64_t> used_, peak_, shown_;      // devices
  Agenda device_ends_;                            // devices, then issuers
  Agenda channel_ends_;                           // channels
  std::vector<int32_t> stirred_devices_, stirred_channels_;
  std::vector<int32_t> stirred_;                  // devices, then channels (not bytes: those alias)
  // What a busy device or channel is told, it sees when it has finished.
  void stir_device(int place) {
    if (!stirred_[place]) stirred_[place] = 1, stirred_devices_.push_back(place);
  }
  void stir_channel(int channel) {
    if (!stirred_[a_.devices + channel])
      stirred_[a_.devices + channel] = 1, stirred_channels_.push_back(channel);
  }
};

}  // namespace placewright
