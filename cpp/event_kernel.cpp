#include "event_kernel.hpp"

#include <algorithm>
#include <stdexcept>

namespace placewright {

bool EventKernel::Stream::operator<(const Stream& other) const {
  if (handed != other.handed) return handed > other.handed;
  if (rank != other.rank) return rank > other.rank;
  return at > other.at;
}

EventKernel::EventKernel(const Layout& layout)
    : a_(layout), device_ends_(layout.devices + layout.issuers), channel_ends_(layout.channels) {
  fit();
  newest_copy_.resize(a_.devices);
  running_.resize(a_.devices);
  line_.resize(a_.devices);
  sending_.resize(a_.channels);
  sending_since_.resize(a_.channels);
  streams_.resize(a_.channels);
  sends_.resize(a_.channels);
  room_.resize(a_.devices);
  issuer_free_.resize(a_.issuers);
  used_.resize(a_.devices);
  peak_.resize(a_.devices);
  shown_.resize(a_.devices);
  stirred_.resize(a_.devices + a_.channels);
}

void EventKernel::fit() {
  plan_order_.forget();
  const size_t most_copies = a_.readers.size();
  uses_.resize(a_.tensors + most_copies);
  copy_.resize(most_copies);
  sent_.resize(most_copies);
  first_copy_.resize(a_.tensors + 1);
  storage_of_read_.resize(a_.readers.size());
  next_read_.resize(a_.readers.size());
  first_local_read_.resize(a_.tensors);
  lined_.resize(a_.ops);
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
  lay_out(plan, InOrder);
  begin<InOrder>();
  while (true) {
    if (a_.issuers) {  // who comes first to a shared issuer matters: devices by index (rule 7)
      for (int place = 0; place < a_.devices; ++place) start_op<InOrder>(place);
      for (const int place : stirred_devices_) stirred_[place] = 0;
    } else {
      for (const int place : stirred_devices_) {
        stirred_[place] = 0;
        start_op<InOrder>(place);
      }
    }
    stirred_devices_.clear();
    for (const int channel : stirred_channels_) {
      stirred_[a_.devices + channel] = 0;
      start_transfer(channel);
    }
    stirred_channels_.clear();
    if constexpr (Recording) look();

    // To the next instant at which something finishes, and all that finishes then.
    now_ = std::min(device_ends_.next(), channel_ends_.next());
    if (now_ == Agenda::kNever) break;
    while (device_ends_.next() == now_) {
      const int slot = device_ends_.pop();
      if (slot >= a_.devices) continue;  // an issuer is free again
      const int op = running_[slot];
      running_[slot] = kNothing;
      end_op<InOrder>(op, slot);
    }
    while (channel_ends_.next() == now_) arrive<InOrder>(channel_ends_.pop());
  }
  if (unfinished_) throw std::logic_error("the event kernel came to a halt before the step was over");
  return step_time_;
}

template <bool InOrder>
void EventKernel::begin() {
  for (int op = 0; op < a_.ops; ++op) {
    if (a_.turn[op]) {
      if (missing_[op] == 0) become_ready<InOrder>(op);
      continue;
    }
    for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
      if (!a_.stored[op] && uses_[t]) used_[plan_.device[op]] += a_.sizes[t];
      for (int c = first_copy_[t]; c < first_copy_[t + 1]; ++c) hand_over(c);
    }
  }
  peak_ = used_;
  if (streaming_) {
    for (int place = 0; place < a_.devices; ++place) reserve(place);
  }
}

template <bool InOrder>
void EventKernel::end_op(int op, int place) {
  --unfinished_;
  used_[place] -= a_.workspace[op];
  for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
    make<InOrder>(t);
    release(t);
  }
  for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
    const int32_t storage = storage_of_read_[a_.reader_slot[i]];
    if (storage >= 0) release(storage);
  }
  if (streaming_ && held_[op]) {
    room_[place].left += held_[op];
    reserve(place);
  }
  stir_device(place);
}

template <bool InOrder>
inline void EventKernel::make(int tensor) {
  for (int r = first_local_read_[tensor]; r >= 0; r = next_read_[r]) one_less<InOrder>(a_.readers[r]);
  for (int c = first_copy_[tensor]; c < first_copy_[tensor + 1]; ++c) hand_over(c);
}

template <bool InOrder>
inline void EventKernel::arrive(int channel) {
  const int32_t sent = sending_[channel];
  stir_channel(channel);
  if (sent == kStream) {
    note_stream(channel);
    sending_[channel] = kNothing;
    one_less<InOrder>(streams_[channel].current.reader);
    return;
  }
  sending_[channel] = kNothing;
  const Copy& copy = copy_[sent];
  const int tensor = copy.tensor;
  if (record_) {
    record_->transfers.push_back(
        {tensor, copy.source, copy.target, channel, -1, sending_since_[channel], now_});
  }
  for (int r = copy.first_read; r >= 0; r = next_read_[r]) one_less<InOrder>(a_.readers[r]);
  release(tensor);
}

template <bool InOrder>
inline void EventKernel::one_less(int op) {
  if (--missing_[op] == 0) become_ready<InOrder>(op);
}

template <bool InOrder>
inline void EventKernel::become_ready(int op) {
  const int place = plan_.device[op];
  if constexpr (!InOrder) {
    Queue& line = line_[place];
    if (plan_.priority) {  // a heap by rank
      const std::vector<int32_t>& rank = plan_order_.rank();
      lined_[line.tail++] = op;
      std::push_heap(lined_.begin() + line.head, lined_.begin() + line.tail,
                     [&](int32_t x, int32_t y) { return rank[x] > rank[y]; });
    } else {
      if (line.time != now_) line.time = now_, line.together = line.tail;
      int32_t at = line.tail++;
      const int32_t stop = std::max(line.head, line.together);
      for (; at > stop && lined_[at - 1] > op; --at) lined_[at] = lined_[at - 1];
      lined_[at] = op;
    }
  }
  if (running_[place] == kNothing) stir_device(place);
}

template <bool InOrder>
inline void EventKernel::start_op(int place) {
  if (running_[place] != kNothing) return;
  Queue& line = line_[place];
  if (line.head == line.tail || (InOrder && missing_[lined_[line.head]])) return;
  const int op = lined_[line.head];
  const double takes = a_.compute[size_t(op) * a_.devices + place];
  if (a_.issuers && a_.issuer[place] >= 0 && takes > 0) {
    double& free = issuer_free_[a_.issuer[place]];
    if (free > now_) return;
    free = now_ + a_.launch[place];
    if (free > now_) device_ends_.add(a_.devices + a_.issuer[place], free);
  }
  if (!InOrder && plan_.priority) {
    const std::vector<int32_t>& rank = plan_order_.rank();
    std::pop_heap(lined_.begin() + line.head, lined_.begin() + line.tail,
                  [&](int32_t x, int32_t y) { return rank[x] > rank[y]; });
    --line.tail;
  } else {
    ++line.head;
  }
  running_[place] = op;
  const double end = now_ + takes;
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
  Queue& sends = sends_[channel];
  const bool tensors = sends.head != sends.tail;
  if (tensors && sending_[channel] == kStream) {  // interrupt it
    note_stream(channel);
    streams_[channel].current.left = channel_ends_.cancel(channel) - now_;
    streams_[channel].paused = true;
    sending_[channel] = kNothing;
  }
  if (sending_[channel] != kNothing) return;
  double takes;
  if (tensors) {
    const int32_t next = sent_[sends.head++];
    sending_[channel] = next;
    takes = copy_[next].takes;
    allocate(copy_[next].target, copy_[next].bytes);
  } else if (streaming_ && (streams_[channel].paused || !streams_[channel].waiting.empty())) {
    Streams& streams = streams_[channel];
    if (!streams.paused) {
      std::pop_heap(streams.waiting.begin(), streams.waiting.end());
      streams.current = streams.waiting.back();
      streams.waiting.pop_back();
    }
    streams.paused = false;
    sending_[channel] = kStream;
    takes = streams.current.left;
  } else {
    return;
  }
  sending_since_[channel] = now_;
  channel_ends_.add(channel, now_ + takes);
}

inline void EventKernel::hand_over(int copy) {
  const int tensor = copy_[copy].tensor, target = copy_[copy].target, channel = copy_[copy].channel;
  Queue& sends = sends_[channel];
  if (sends.time != now_) sends.time = now_, sends.together = sends.tail;
  int32_t at = sends.tail++;
  const int32_t stop = std::max(sends.head, sends.together);
  for (; at > stop; --at) {
    const Copy& other = copy_[sent_[at - 1]];
    if (other.tensor < tensor || (other.tensor == tensor && other.target < target)) break;
    sent_[at] = sent_[at - 1];
  }
  sent_[at] = copy;
  if (sending_[channel] < 0) stir_channel(channel);  // at rest, or a streamed weight to interrupt
}

void EventKernel::reserve(int place) {
  Room& room = room_[place];
  while (room.next < room.wanted.size() && a_.sizes[room.wanted[room.next].tensor] <= room.left) {
    Stream stream = room.wanted[room.next++];
    room.left -= a_.sizes[stream.tensor];
    held_[stream.reader] += a_.sizes[stream.tensor];
    stream.handed = now_;
    const int channel = a_.channel[stream.source * a_.devices + place];
    std::vector<Stream>& waiting = streams_[channel].waiting;
    waiting.push_back(stream);
    std::push_heap(waiting.begin(), waiting.end());
    if (sending_[channel] == kNothing) stir_channel(channel);
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
    } else if (!a_.stored[a_.producer[storage]]) {
      used_[plan_.device[a_.producer[storage]]] -= a_.sizes[storage];
    }
    return;
  }
}

inline void EventKernel::allocate(int place, int64_t bytes) {
  used_[place] += bytes;
  peak_[place] = std::max(peak_[place], used_[place]);
}

void EventKernel::look() {
  for (int place = 0; place < a_.devices; ++place) {
    if (used_[place] == shown_[place]) continue;
    shown_[place] = used_[place];
    record_->memory.push_back({place, now_, used_[place]});
  }
}

void EventKernel::note_stream(int channel) {
  if (!record_ || sending_since_[channel] == now_) return;  // nothing moved yet
  const Stream& stream = streams_[channel].current;
  record_->transfers.push_back({stream.tensor, stream.source, stream.target, channel, stream.reader,
                                sending_since_[channel], now_});
}

}  // namespace placewright
