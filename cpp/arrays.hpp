// A problem's arrays in, what the kernels keep of them out.
#pragma once

#include <algorithm>
#include <vector>

#include "contraction.hpp"
#include "layout.hpp"
#include "numpy.hpp"

namespace placewright {

template <typename Stored, typename T = Stored>
std::vector<Stored> copied(const nb::object& arrays, const char* name) {
  const auto array = nb::cast<nb::ndarray<const T, nb::c_contig, nb::device::cpu>>(arrays.attr(name));
  return std::vector<Stored>(array.data(), array.data() + array.size());
}

inline Layout read_layout(const nb::object& arrays) {
  Layout a;
  a.compute = copied<double>(arrays, "compute");
  a.allowed = copied<uint8_t, bool>(arrays, "allowed");
  a.head = copied<int32_t>(arrays, "head");
  a.turn = copied<uint8_t, bool>(arrays, "turn");
  a.weight = copied<uint8_t, bool>(arrays, "weight");
  a.stored = copied<uint8_t, bool>(arrays, "stored");
  a.resident = copied<int64_t>(arrays, "resident");
  a.workspace = copied<int64_t>(arrays, "workspace");
  a.first_tensor = copied<int32_t>(arrays, "first_tensor");
  a.first_input = copied<int32_t>(arrays, "first_input");
  a.inputs = copied<int32_t>(arrays, "inputs");
  a.sizes = copied<int64_t>(arrays, "sizes");
  a.producer = copied<int32_t>(arrays, "producer");
  a.alias = copied<int32_t>(arrays, "alias");
  a.kept = copied<uint8_t, bool>(arrays, "kept");
  a.first_reader = copied<int32_t>(arrays, "first_reader");
  a.readers = copied<int32_t>(arrays, "readers");
  a.transfer = copied<double>(arrays, "transfer");
  a.link_class = copied<int32_t>(arrays, "link_class");
  a.channel = copied<int32_t>(arrays, "channel");
  a.host = copied<uint8_t, bool>(arrays, "host");
  a.issuer = copied<int32_t>(arrays, "issuer");
  a.launch = copied<double>(arrays, "launch");
  a.ops = static_cast<int>(a.head.size());
  a.devices = static_cast<int>(a.host.size());
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
  out.alone = copied<double>(parts, "alone");
  out.work = copied<double>(parts, "work");
  out.moved = copied<int64_t>(parts, "moved");
  out.free = copied<uint8_t, bool>(parts, "free");
  out.rate = copied<double>(parts, "rate");
  out.launch = copied<double>(parts, "launch");
  out.reads = listed(reads);
  out.role = listed(role);
  out.known = true;
  return out;
}

}  // namespace placewright
