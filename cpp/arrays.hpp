// Numpy's arrays in, what the kernels keep of them out, and back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <vector>

#include "contraction.hpp"
#include "layout.hpp"

namespace placewright {

namespace nb = nanobind;

template <typename T>
using Row = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Cube = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::vector<T> listed(const Row<T>& row) {
  return std::vector<T>(row.data(), row.data() + row.size());
}

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

template <typename T>
nb::ndarray<nb::numpy, T> to_numpy(std::vector<T>&& values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape, owner);
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
