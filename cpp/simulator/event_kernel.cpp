#include "simulator/event_kernel.hpp"

#include <algorithm>
#include <stdexcept>

namespace placewright {

bool EventKernel::Stream::operator<(const Stream& other) const {
  if (requested_at != other.requested_at) return requested_at > other.requested_at;
  if (rank != other.rank) return rank > other.rank;
  return at > other.at;
}

EventKernel::EventKernel(const ProblemLayout& layout)
    : a_(layout), device_ends_(layout.devices + layout.issuers), channel_ends_(layout.channels) {
  resize_buffers();
  newest_copy_.resize(a_.devices);
  running_.resize(a_.devices);
  device_queue_.resize(a_.devices);
  sending_.resize(a_.channels);
  sending_since_.resize(a_.channels);
  streams_.resize(a_.channels);
  channel_queue_.resize(a_.channels);
  staging_.resize(a_.devices);
  issuer_free_at_.resize(a_.issuers);
  used_.resize(a_.devices);
  peak_.resize(a_.devices);
  recorded_.resize(a_.devices);
  awake_.resize(a_.devices + a_.channels);
}

void EventKernel::resize_buffers() {
  plan_order_.reset();
  const size_t max_copies = a_.readers.size();
  uses_.resize(a_.tensors + max_copies);
  copy_.resize(max_copies);
  send_queue_.resize(max_copies);
  first_copy_.resize(a_.tensors + 1);
  storage_of_read_.resize(a_.readers.size());
  next_read_.resize(a_.readers.size());
  first_local_read_.resize(a_.tensors);
  queue_.resize(a_.ops);
}

double EventKernel::run(const PlanView& plan, bool in_order, Record* record) {
  record_ = record;
  if (record) {
    *record = Record{};
    record->start.assign(a_.ops, 0.0);
    record->end.assign(a_.ops, 0.0);
    return in_order ? simulate<true, true>(plan) : simulate<false, true>(plan);
  }
  return in_order ? simulate<true, false>(plan) : simulate<false, false>(plan);
}

template <bool InOrder, bool Recording>
double EventKernel::simulate(const PlanView& plan) {
  prepare(plan, InOrder);
  begin<InOrder>();
  while (true) {
    if (a_.issuers) {  // a shared issuer serves devices by index (rule 7)
      for (int place = 0; place < a_.devices; ++place) start_op<InOrder>(place);
      for (const int place : awake_devices_) awake_[place] = 0;
    } else {
      for (const int place : awake_devices_) {
        awake_[place] = 0;
        start_op<InOrder>(place);
      }
    }
    awake_devices_.clear();
    for (const int channel : awake_channels_) {
      awake_[a_.devices + channel] = 0;
      start_transfer(channel);
    }
    awake_channels_.clear();
    if constexpr (Recording) record_memory();

    // To the next instant at which something finishes, and all that finishes then.
    now_ = std::min(device_ends_.next(), channel_ends_.next());
    if (now_ == EventQueue::kNever) break;
    while (device_ends_.next() == now_) {
      const int slot = device_ends_.pop();
      if (slot >= a_.devices) continue;  // an issuer is free again
      const int op = running_[slot];
      running_[slot] = kIdle;
      finish_op<InOrder>(op, slot);
    }
    while (channel_ends_.next() == now_) arrive<InOrder>(channel_ends_.pop());
  }
  if (unfinished_) throw std::logic_error("the event kernel came to a halt before the step was over");
  return step_time_;
}

template <bool InOrder>
void EventKernel::begin() {
  for (int op = 0; op < a_.ops; ++op) {
    if (a_.scheduled[op]) {
      if (missing_inputs_[op] == 0) enqueue_ready<InOrder>(op);
      continue;
    }
    for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
      if (!a_.is_resident[op] && uses_[t]) used_[plan_.device[op]] += a_.sizes[t];
      for (int c = first_copy_[t]; c < first_copy_[t + 1]; ++c) enqueue_copy(c);
    }
  }
  peak_ = used_;
  if (streaming_) {
    for (int place = 0; place < a_.devices; ++place) fill_staging(place);
  }
}

template <bool InOrder>
void EventKernel::finish_op(int op, int place) {
  --unfinished_;
  used_[place] -= a_.workspace[op];
  for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
    produce<InOrder>(t);
    release(t);
  }
  for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
    const int32_t storage = storage_of_read_[a_.reader_slot[i]];
    if (storage >= 0) release(storage);
  }
  if (streaming_ && staged_bytes_[op]) {
    staging_[place].remaining += staged_bytes_[op];
    fill_staging(place);
  }
  wake_device(place);
}

template <bool InOrder>
inline void EventKernel::produce(int tensor) {
  for (int r = first_local_read_[tensor]; r >= 0; r = next_read_[r]) input_arrived<InOrder>(a_.readers[r]);
  for (int c = first_copy_[tensor]; c < first_copy_[tensor + 1]; ++c) enqueue_copy(c);
}

template <bool InOrder>
inline void EventKernel::arrive(int channel) {
  const int32_t sent = sending_[channel];
  wake_channel(channel);
  if (sent == kStream) {
    record_stream(channel);
    sending_[channel] = kIdle;
    input_arrived<InOrder>(streams_[channel].current.reader);
    return;
  }
  sending_[channel] = kIdle;
  const Copy& copy = copy_[sent];
  const int tensor = copy.tensor;
  if (record_) {
    record_->transfers.push_back(
        {tensor, copy.source, copy.target, channel, -1, sending_since_[channel], now_});
  }
  for (int r = copy.first_read; r >= 0; r = next_read_[r]) input_arrived<InOrder>(a_.readers[r]);
  release(tensor);
}

template <bool InOrder>
inline void EventKernel::input_arrived(int op) {
  if (--missing_inputs_[op] == 0) enqueue_ready<InOrder>(op);
}

template <bool InOrder>
inline void EventKernel::enqueue_ready(int op) {
  const int place = plan_.device[op];
  if constexpr (!InOrder) {
    Queue& queue = device_queue_[place];
    if (plan_.priority) {  // a heap by rank
      const std::vector<int32_t>& rank = plan_order_.rank();
      queue_[queue.tail++] = op;
      std::push_heap(queue_.begin() + queue.head, queue_.begin() + queue.tail,
                     [&](int32_t x, int32_t y) { return rank[x] > rank[y]; });
    } else {
      if (queue.time != now_) queue.time = now_, queue.batch_begin = queue.tail;
      int32_t at = queue.tail++;
      const int32_t stop = std::max(queue.head, queue.batch_begin);
      for (; at > stop && queue_[at - 1] > op; --at) queue_[at] = queue_[at - 1];
      queue_[at] = op;
    }
  }
  if (running_[place] == kIdle) wake_device(place);
}

template <bool InOrder>
inline void EventKernel::start_op(int place) {
  if (running_[place] != kIdle) return;
  Queue& queue = device_queue_[place];
  if (queue.head == queue.tail || (InOrder && missing_inputs_[queue_[queue.head]])) return;
  const int op = queue_[queue.head];
  const double seconds = a_.compute[size_t(op) * a_.devices + place];
  if (a_.issuers && a_.issuer[place] >= 0 && seconds > 0) {
    double& free = issuer_free_at_[a_.issuer[place]];
    if (free > now_) return;
    free = now_ + a_.launch_overhead[place];
    if (free > now_) device_ends_.add(a_.devices + a_.issuer[place], free);
  }
  if (!InOrder && plan_.priority) {
    const std::vector<int32_t>& rank = plan_order_.rank();
    std::pop_heap(queue_.begin() + queue.head, queue_.begin() + queue.tail,
                  [&](int32_t x, int32_t y) { return rank[x] > rank[y]; });
    --queue.tail;
  } else {
    ++queue.head;
  }
  running_[place] = op;
  const double end = now_ + seconds;
  step_time_ = std::max(step_time_, end);
  device_ends_.add(place, end);
  int64_t bytes = a_.start_bytes[op];
  if (a_.any_alias) {
    for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
      if (a_.alias[t] >= 0 && parent_[t] < 0) bytes += a_.sizes[t];
    }
  }
  allocate(place, bytes);
  if (record_) {
    record_->start[op] = now_;
    record_->end[op] = end;
  }
}

inline void EventKernel::start_transfer(int channel) {
  Queue& sends = channel_queue_[channel];
  const bool tensors = sends.head != sends.tail;
  if (tensors && sending_[channel] == kStream) {  // interrupt it
    record_stream(channel);
    streams_[channel].current.remaining = channel_ends_.cancel(channel) - now_;
    streams_[channel].paused = true;
    sending_[channel] = kIdle;
  }
  if (sending_[channel] != kIdle) return;
  double seconds;
  if (tensors) {
    const int32_t next = send_queue_[sends.head++];
    sending_[channel] = next;
    seconds = copy_[next].seconds;
    allocate(copy_[next].target, copy_[next].bytes);
  } else if (streaming_ && (streams_[channel].paused || !streams_[channel].waiting.empty())) {
    ChannelStreams& streams = streams_[channel];
    if (!streams.paused) {
      std::pop_heap(streams.waiting.begin(), streams.waiting.end());
      streams.current = streams.waiting.back();
      streams.waiting.pop_back();
    }
    streams.paused = false;
    sending_[channel] = kStream;
    seconds = streams.current.remaining;
  } else {
    return;
  }
  sending_since_[channel] = now_;
  channel_ends_.add(channel, now_ + seconds);
}

inline void EventKernel::enqueue_copy(int copy) {
  const int tensor = copy_[copy].tensor, target = copy_[copy].target, channel = copy_[copy].channel;
  Queue& sends = channel_queue_[channel];
  if (sends.time != now_) sends.time = now_, sends.batch_begin = sends.tail;
  int32_t at = sends.tail++;
  const int32_t stop = std::max(sends.head, sends.batch_begin);
  for (; at > stop; --at) {
    const Copy& other = copy_[send_queue_[at - 1]];
    if (other.tensor < tensor || (other.tensor == tensor && other.target < target)) break;
    send_queue_[at] = send_queue_[at - 1];
  }
  send_queue_[at] = copy;
  if (sending_[channel] < 0) wake_channel(channel);  // at rest, or a streamed weight to interrupt
}

void EventKernel::fill_staging(int place) {
  StagingBuffer& buffer = staging_[place];
  while (buffer.next < buffer.requests.size() && a_.sizes[buffer.requests[buffer.next].tensor] <= buffer.remaining) {
    Stream stream = buffer.requests[buffer.next++];
    buffer.remaining -= a_.sizes[stream.tensor];
    staged_bytes_[stream.reader] += a_.sizes[stream.tensor];
    stream.requested_at = now_;
    const int channel = a_.channel[stream.source * a_.devices + place];
    std::vector<Stream>& waiting = streams_[channel].waiting;
    waiting.push_back(stream);
    std::push_heap(waiting.begin(), waiting.end());
    if (sending_[channel] == kIdle) wake_channel(channel);
  }
}

inline void EventKernel::release(int storage) {
  while (--uses_[storage] == 0) {
    if (a_.any_alias && parent_[storage] >= 0) {
      storage = parent_[storage];
      continue;
    }
    if (storage >= a_.tensors) {
      const Copy& copy = copy_[storage - a_.tensors];
      used_[copy.target] -= copy.bytes;
    } else if (!a_.is_resident[a_.producer[storage]]) {
      used_[plan_.device[a_.producer[storage]]] -= a_.sizes[storage];
    }
    return;
  }
}

inline void EventKernel::allocate(int place, int64_t bytes) {
  used_[place] += bytes;
  peak_[place] = std::max(peak_[place], used_[place]);
}

void EventKernel::record_memory() {
  for (int place = 0; place < a_.devices; ++place) {
    if (used_[place] == recorded_[place]) continue;
    recorded_[place] = used_[place];
    record_->memory.push_back({place, now_, used_[place]});
  }
}

void EventKernel::record_stream(int channel) {
  if (!record_ || sending_since_[channel] == now_) return;  // nothing moved yet
  const Stream& stream = streams_[channel].current;
  record_->transfers.push_back({stream.tensor, stream.source, stream.target, channel, stream.reader,
                                sending_since_[channel], now_});
}

}  // namespace placewright
