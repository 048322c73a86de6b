// Reads a problem's numpy arrays into the layouts that the kernels use.
#pragma once

#include <algorithm>
#include <vector>

#include "simulator/contraction.hpp"
#include "problem_layout.hpp"
#include "numpy.hpp"

namespace placewright {

template <typename Stored, typename T = Stored>
std::vector<Stored> read_array(const nb::object& arrays, const char* name) {
  const auto array = nb::cast<nb::ndarray<const T, nb::c_contig, nb::device::cpu>>(arrays.attr(name));
  return std::vector<Stored>(array.data(), array.data() + array.size());
}

inline ProblemLayout read_layout(const nb::object& arrays) {
  ProblemLayout a;
  a.compute = read_array<double>(arrays, "compute");
  a.allowed = read_array<uint8_t, bool>(arrays, "allowed");
  a.unit_head = read_array<int32_t>(arrays, "unit_head");
  a.scheduled = read_array<uint8_t, bool>(arrays, "scheduled");
  a.is_weight = read_array<uint8_t, bool>(arrays, "is_weight");
  a.is_resident = read_array<uint8_t, bool>(arrays, "is_resident");
  a.resident = read_array<int64_t>(arrays, "resident");
  a.workspace = read_array<int64_t>(arrays, "workspace");
  a.first_tensor = read_array<int32_t>(arrays, "first_tensor");
  a.first_input = read_array<int32_t>(arrays, "first_input");
  a.inputs = read_array<int32_t>(arrays, "inputs");
  a.sizes = read_array<int64_t>(arrays, "sizes");
  a.producer = read_array<int32_t>(arrays, "producer");
  a.alias = read_array<int32_t>(arrays, "alias");
  a.is_output = read_array<uint8_t, bool>(arrays, "is_output");
  a.first_reader = read_array<int32_t>(arrays, "first_reader");
  a.readers = read_array<int32_t>(arrays, "readers");
  a.transfer = read_array<double>(arrays, "transfer");
  a.link_class = read_array<int32_t>(arrays, "link_class");
  a.channel = read_array<int32_t>(arrays, "channel");
  a.is_host = read_array<uint8_t, bool>(arrays, "is_host");
  a.issuer = read_array<int32_t>(arrays, "issuer");
  a.launch_overhead = read_array<double>(arrays, "launch_overhead");
  a.ops = static_cast<int>(a.unit_head.size());
  a.devices = static_cast<int>(a.is_host.size());
  a.tensors = static_cast<int>(a.sizes.size());
  for (const int32_t channel : a.channel) a.channels = std::max(a.channels, channel + 1);
  for (const int32_t issuer : a.issuer) a.issuers = std::max(a.issuers, issuer + 1);
  a.classes = a.tensors ? static_cast<int>(a.transfer.size() / a.tensors) : 0;
  a.derive();
  return a;
}

template <typename T, typename Row, typename Get>
nb::ndarray<nb::numpy, T> column(const std::vector<Row>& rows, Get get) {
  std::vector<T> values;
  values.reserve(rows.size());
  for (const Row& row : rows) values.push_back(get(row));
  const size_t size = values.size();
  return to_numpy<T>(std::move(values), {size});
}

inline FusedParts read_parts(const nb::object& parts, const Row<int64_t>& reads, const Row<int8_t>& role) {
  FusedParts out;
  out.unfused = read_array<double>(parts, "unfused");
  out.work = read_array<double>(parts, "work");
  out.bytes_moved = read_array<int64_t>(parts, "bytes_moved");
  out.free = read_array<uint8_t, bool>(parts, "free");
  out.memory_bandwidth = read_array<double>(parts, "memory_bandwidth");
  out.launch_overhead = read_array<double>(parts, "launch_overhead");
  out.reads = to_vector(reads);
  out.role = to_vector(role);
  out.is_set = true;
  return out;
}

}  // namespace placewright
