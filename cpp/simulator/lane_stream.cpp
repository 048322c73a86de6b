#include "simulator/lane_stream.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>

namespace placewright {

namespace {

// The class of all links between devices, or -1.
int find_only_class(const LaneLayout& layout) {
  const ProblemLayout& a = layout.a;
  int found = -1;
  for (int source = 0; source < a.devices; ++source) {
    int32_t own = -1;
    for (int target = 0; target < a.devices; ++target) {
      if (source == target) continue;
      const int32_t channel = layout.channel_of[source * a.devices + target];
      const int32_t link = layout.class_of[source * a.devices + target];
      if ((own >= 0 && channel != own) || (found >= 0 && link != found)) return -1;
      own = channel, found = link;
    }
  }
  return std::max(found, 0);
}

// An exponent for which a plan's times, divided by 2 to this power, are below 2 to `kTimeExponent`.
int find_time_exponent(const LaneLayout& layout) {
  const ProblemLayout& a = layout.a;
  double total = 0;
  for (int op = 0; op < a.ops; ++op) {
    double most = 0;
    const auto seconds = a.compute.begin() + size_t(op) * a.devices;
    for (int device = 0; device < a.devices; ++device) most = std::max(most, seconds[device]);
    total += most;
  }
  const int classes = a.classes + 1;
  for (int tensor = 0; tensor < a.tensors; ++tensor) {
    const auto seconds = layout.transfer.begin() + size_t(tensor) * classes;
    const int readers = layout.first_edge[tensor + 1] - layout.first_edge[tensor];
    total += *std::max_element(seconds, seconds + classes) * std::min(readers, a.devices);
  }
  // Rounding adds less than the factor 2 that `+ 2` leaves.
  return total > 0 ? std::max(std::ilogb(total) + 2 - kTimeExponent, 0) : 0;
}

template <typename Count>
class Writer {
 public:
  Writer(const LaneLayout& layout, LaneStream& stream, int only_class)
      : layout_(layout), a_(layout.a), stream_(stream), only_class_(only_class) {}

  void write() {
    for (const int32_t op : layout_.resident_op) put(ResidentRecord<Count>{row(op), count(a_.resident[op])});
    for (const int32_t op : layout_.fixed_op) put_op(op, false);
    for (const int32_t op : layout_.order) put_op(op, true);
    put(OpRecord<Count>{});
  }

 private:
  uint32_t row(int32_t op) const { return static_cast<uint32_t>(layout_.op_row[op]); }
  Count count(int64_t bytes) const { return static_cast<Count>(bytes / stream_.unit); }
  float scaled(double seconds) const { return static_cast<float>(std::ldexp(seconds, -stream_.time_exponent)); }

  template <typename Record>
  size_t put(const Record& record) {
    const size_t at = stream_.words.size();
    stream_.words.resize(at + (sizeof record + 15) / 16 * 4);
    std::memcpy(&stream_.words[at], &record, sizeof record);
    return at;
  }

  template <typename Record>
  void put_all(const std::vector<Record>& records) {
    const size_t at = stream_.words.size(), bytes = records.size() * sizeof(Record);
    stream_.words.resize(at + (bytes + 15) / 16 * 4);
    if (bytes) std::memcpy(&stream_.words[at], records.data(), bytes);
  }

  void put_op(int32_t op, bool has_turn) {
    OpRecord<Count> record{};
    record.row = row(op);
    record.tensors = static_cast<uint32_t>(a_.outputs_end(op) - a_.outputs_begin(op));
    record.start_low = count(a_.start_bytes[op]), record.start_high = count(layout_.all_bytes[op]);
    record.workspace = count(a_.workspace[op]);
    const size_t at = put(record);
    if (has_turn) {
      const auto compute = a_.compute.begin() + size_t(op) * a_.devices;
      std::vector<float> seconds;
      for (int device = 0; device < a_.devices; ++device) seconds.push_back(scaled(compute[device]));
      put_all(seconds);
      std::vector<ReadRecord<Count>> reads;
      for (int read = layout_.first_read[op]; read < layout_.first_read[op + 1]; ++read) {
        reads.push_back({static_cast<uint32_t>(layout_.read_slot[read]), count(a_.sizes[layout_.read_tensor[read]])});
      }
      record.reads = static_cast<uint32_t>(reads.size());
      if (reads.size() % 2) reads.push_back({});
      put_all(reads);
    }
    for (int tensor = a_.outputs_begin(op); tensor < a_.outputs_end(op); ++tensor) put_tensor(op, tensor, has_turn);
    record.quads = static_cast<uint32_t>((stream_.words.size() - at) / 4);
    std::memcpy(&stream_.words[at], &record, sizeof record);
  }

  void put_tensor(int32_t op, int tensor, bool has_turn) {
    const uint8_t flags = layout_.tensor_flags[tensor];
    // A view has no bytes of its own in the lower bound; what it is a view of is not given back in the upper one.
    const bool low = flags & kReleasable && !(flags & kView), high = flags & kReleasable && !(flags & kViewed);
    const int64_t bytes = a_.sizes[tensor];
    const double* seconds = layout_.transfer.data() + size_t(tensor) * (a_.classes + 1);
    std::vector<EdgeRecord> edges;
    for (int edge = layout_.first_edge[tensor]; edge < layout_.first_edge[tensor + 1]; ++edge) {
      edges.push_back({static_cast<uint32_t>(layout_.edge_row[edge]), static_cast<uint32_t>(layout_.edge_slot[edge])});
    }
    TensorRecord<Count> record{};
    record.edges = static_cast<uint32_t>(edges.size()) | (flags & kOutput ? kIsOutput : 0);
    record.edges |= (low ? kReleasedLow : 0) | (high ? kReleasedHigh : 0);
    record.edges |= (kReleasedLow | (flags & kViewed ? 0 : kReleasedHigh)) >> kRemoteShift;
    record.transfer = only_class_ >= 0 ? scaled(seconds[only_class_]) : 0.0f;
    const bool counts = has_turn || !a_.is_resident[op];
    record.low = count(counts && (low || !has_turn) ? bytes : 0);
    record.high = count(counts && (high || !has_turn) ? bytes : 0);
    put(record);
    if (only_class_ < 0) {
      std::vector<float> all;
      for (int link = 0; link <= a_.classes; ++link) all.push_back(scaled(seconds[link]));
      put_all(all);
    }
    put_all(edges);
  }

  const LaneLayout& layout_;
  const ProblemLayout& a_;
  LaneStream& stream_;
  const int only_class_;
};

}  // namespace

LaneStream::LaneStream(const LaneLayout& layout) {
  const ProblemLayout& a = layout.a;
  const int only_class = find_only_class(layout);
  is_one_channel = only_class >= 0;
  time_exponent = find_time_exponent(layout);
  int64_t divisor = 0, total = 0, most_workspace = 0;
  for (const auto* bytes : {&a.sizes, &a.resident, &a.workspace}) {
    for (const int64_t value : *bytes) divisor = std::gcd(divisor, value);
  }
  unit = std::max<int64_t>(divisor, 1);
  // No count exceeds it: each device makes or receives a tensor at most once, and one op runs at a time.
  for (const int64_t bytes : a.sizes) total += bytes;
  for (const int64_t bytes : a.resident) total += bytes;
  for (const int64_t bytes : a.workspace) most_workspace = std::max(most_workspace, bytes);
  is_wide = (total + most_workspace) / unit > int64_t{UINT32_MAX};
  if (is_wide) {
    Writer<uint64_t>(layout, *this, only_class).write();
  } else {
    Writer<uint32_t>(layout, *this, only_class).write();
  }
}

}  // namespace placewright
