// Prepares a step: where each reader finds each tensor, the transfers, and the initial queues.
#include <algorithm>

#include "simulator/event_kernel.hpp"

namespace placewright {

// One tensor: which storage each reader finds it in, the copies to send, and what keeps it alive.
inline void EventKernel::prepare_tensor(const PlanView& plan, int tensor) {
  const int producer = a_.producer[tensor];
  const int source = plan.device[producer];
  const bool scheduled = a_.scheduled[producer];
  const bool streamable = streaming_ && a_.is_weight[producer];
  const int32_t first = copies_;
  first_copy_[tensor] = first;
  int32_t uses = a_.is_output[tensor] + scheduled, local = -1;
  for (int r = a_.first_reader[tensor]; r < a_.first_reader[tensor + 1]; ++r) {
    const int reader = a_.readers[r];
    const int target = plan.device[reader];
    if (target == source) {
      storage_of_read_[r] = tensor;
      next_read_[r] = local;
      local = r;
      uses += a_.scheduled[reader];
      continue;
    }
    if (!a_.scheduled[reader]) continue;  // a view of a weight is on the weight's device: not reached
    missing_inputs_[reader] += !scheduled;
    if (streamable && plan.staging[target] >= 0) {
      storage_of_read_[r] = -1;
      continue;
    }
    int32_t copy = newest_copy_[target];
    if (copy < first) {
      copy = copies_++;
      newest_copy_[target] = copy;
      const int channel = a_.channel[source * a_.devices + target];
      copy_[copy] = {tensor, source, target, channel, -1, duration(source, target, tensor), a_.sizes[tensor]};
      uses_[a_.tensors + copy] = 0;
      ++channel_queue_[channel].tail;
      ++uses;
    }
    storage_of_read_[r] = a_.tensors + copy;
    next_read_[r] = copy_[copy].first_read;
    copy_[copy].first_read = r;
    ++uses_[a_.tensors + copy];
  }
  uses_[tensor] = uses;
  first_local_read_[tensor] = local;
}

void EventKernel::prepare(const PlanView& plan, bool in_order) {
  plan_ = plan;
  now_ = step_time_ = 0.0;
  unfinished_ = static_cast<int>(a_.scheduled_ops.size());
  streaming_ = plan.staging != nullptr;
  std::fill(used_.begin(), used_.end(), 0);
  std::fill(peak_.begin(), peak_.end(), 0);
  std::fill(recorded_.begin(), recorded_.end(), -1);
  std::fill(running_.begin(), running_.end(), kIdle);
  std::fill(awake_.begin(), awake_.end(), 0);
  std::fill(issuer_free_at_.begin(), issuer_free_at_.end(), 0.0);
  device_ends_.clear();
  channel_ends_.clear();
  awake_devices_.clear();
  awake_channels_.clear();
  missing_inputs_ = a_.scheduled_inputs;
  for (int op = 0; op < a_.ops; ++op) used_[plan.device[op]] += a_.resident[op];

  copies_ = 0;
  std::fill(newest_copy_.begin(), newest_copy_.end(), -1);
  std::fill(channel_queue_.begin(), channel_queue_.end(), Queue{});
  for (int tensor = 0; tensor < a_.tensors; ++tensor) prepare_tensor(plan, tensor);
  first_copy_[a_.tensors] = copies_;
  if (a_.any_alias) prepare_aliases();
  int32_t offset = 0;
  for (Queue& queue : channel_queue_) {  // until here `tail` counted the copies of each channel
    const int32_t count = queue.tail;
    queue.head = queue.tail = queue.batch_begin = offset;
    offset += count;
  }
  std::fill(sending_.begin(), sending_.end(), kIdle);

  const bool ranked = plan.priority != nullptr;
  if (ranked || streaming_) plan_order_.compute(a_, plan.priority, order_);
  if (streaming_) prepare_streams(plan);
  const std::vector<int32_t>& order = ranked ? order_ : a_.scheduled_ops;
  std::fill(device_queue_.begin(), device_queue_.end(), Queue{});
  for (const int32_t op : order) ++device_queue_[plan.device[op]].tail;
  offset = 0;
  for (Queue& device_queue : device_queue_) {
    const int32_t count = device_queue.tail;
    device_queue.head = device_queue.tail = device_queue.batch_begin = offset;
    offset += count;
  }
  if (in_order) {
    for (const int32_t op : order) queue_[device_queue_[plan.device[op]].tail++] = op;
  }
}

void EventKernel::prepare_aliases() {
  parent_.assign(a_.tensors + copies_, -1);
  for (const int32_t op : a_.scheduled_ops) {
    for (int t = a_.outputs_begin(op); t < a_.outputs_end(op); ++t) {
      if (a_.alias[t] < 0) continue;
      for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
        if (a_.inputs[i] != a_.alias[t]) continue;
        const int32_t storage = storage_of_read_[a_.reader_slot[i]];
        if (storage < 0) continue;  // a streamed weight: its staging bytes are released
        parent_[t] = storage;
        ++uses_[storage];
      }
    }
  }
}

void EventKernel::prepare_streams(const PlanView& plan) {
  staged_bytes_.assign(a_.ops, 0);
  for (ChannelStreams& streams : streams_) {
    streams.paused = false;
    streams.waiting.clear();
  }
  for (int place = 0; place < a_.devices; ++place) {
    staging_[place].requests.clear();
    staging_[place].next = 0;
    staging_[place].remaining = plan.staging_bytes(place);
    used_[place] += std::max<int64_t>(plan.staging_bytes(place), 0);
  }
  for (size_t rank = 0; rank < order_.size(); ++rank) {
    const int op = order_[rank], place = plan.device[op];
    if (plan.staging_bytes(place) < 0) continue;
    int64_t need = 0;
    for (int i = a_.first_input[op]; i < a_.first_input[op + 1]; ++i) {
      if (storage_of_read_[a_.reader_slot[i]] >= 0) continue;
      const int tensor = a_.inputs[i], source = plan.device[a_.producer[tensor]];
      need += a_.sizes[tensor];
      staging_[place].requests.push_back(Stream{0.0, int32_t(rank), i - a_.first_input[op], tensor, source, place, op,
                                           duration(source, place, tensor)});
    }
    if (need > plan.staging_bytes(place)) throw MalformedPlan{MalformedPlan::kStaging, op};
  }
}

}  // namespace placewright
