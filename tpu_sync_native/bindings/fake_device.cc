// The fake device, for tests and for the benchmark of pacing.
#include "copy/fake_device.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "gil.h"

namespace py = pybind11;

namespace tpu_sync_native {
namespace {

FakeQueue QueueNamed(const std::string& name) {
  if (name == "steps") return FakeQueue::kSteps;
  if (name == "copies") return FakeQueue::kCopies;
  throw std::invalid_argument("queue is '" + name + "', allowed are 'steps' and 'copies'");
}

const char* NameOf(FakeOpKind kind) {
  switch (kind) {
    case FakeOpKind::kStore:
      return "store";
    case FakeOpKind::kLoad:
      return "load";
    case FakeOpKind::kStep:
      return "step";
  }
  return "";
}

std::unique_ptr<FakeDevice> Make(bool replaces_buffers, bool in_order_queue, uint64_t alignment_bytes,
                                 uint64_t piece_bytes_max, uint64_t inflight_bytes_max, uint64_t copy_ns,
                                 uint64_t bytes_per_us, uint64_t seed, uint32_t copies_failing,
                                 uint32_t holds_refused) {
  FakeDeviceOptions options;
  options.replaces_buffers = replaces_buffers;
  options.in_order_queue = in_order_queue;
  options.alignment_bytes = alignment_bytes;
  options.piece_bytes_max = piece_bytes_max;
  options.inflight_bytes_max = inflight_bytes_max;
  options.copy_ns = copy_ns;
  options.bytes_per_us = bytes_per_us;
  options.seed = seed;
  options.copies_failing = copies_failing;
  options.holds_refused = holds_refused;
  return std::make_unique<FakeDevice>(options);
}

std::span<const uint8_t> BytesOf(const py::bytes& bytes) {
  const std::string_view view = bytes;
  return {reinterpret_cast<const uint8_t*>(view.data()), view.size()};
}

py::bytes Read(const FakeDevice& device, uint64_t buffer) {
  const std::vector<uint8_t> bytes = device.Read(buffer);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint64_t> Step(FakeDevice* device, const std::vector<uint64_t>& buffers,
                           const std::vector<std::tuple<uint64_t, uint64_t, py::bytes>>& writes,
                           uint64_t cost_ns, bool fails) {
  std::vector<FakeWrite> copied;
  for (const auto& [buffer, offset, bytes] : writes) {
    const auto view = BytesOf(bytes);
    copied.push_back({buffer, offset, {view.begin(), view.end()}});
  }
  return WithoutGil([&] { return device->Step(buffers, std::move(copied), cost_ns, fails); });
}

py::list Log(const FakeDevice& device) {
  py::list log;
  for (const FakeOp& op : device.log()) {
    log.append(py::make_tuple(NameOf(op.kind), op.bytes, op.begin_ns, op.end_ns, op.copies_ahead_ns, op.ok));
  }
  return log;
}

}  // namespace

void BindFakeDevice(py::module_& module) {
  const FakeDeviceOptions fake;
  py::class_<FakeDevice>(module, "FakeDevice")
      .def(py::init(&Make), py::kw_only(), py::arg("replaces_buffers") = fake.replaces_buffers,
           py::arg("in_order_queue") = fake.in_order_queue, py::arg("alignment_bytes") = fake.alignment_bytes,
           py::arg("piece_bytes_max") = fake.piece_bytes_max,
           py::arg("inflight_bytes_max") = fake.inflight_bytes_max, py::arg("copy_ns") = fake.copy_ns,
           py::arg("bytes_per_us") = fake.bytes_per_us, py::arg("seed") = fake.seed,
           py::arg("copies_failing") = fake.copies_failing, py::arg("holds_refused") = fake.holds_refused)
      .def("backend", &FakeDevice::backend)
      .def("make_buffer", &FakeDevice::MakeBuffer, py::arg("size_bytes"))
      .def("read", &Read, py::arg("buffer"))
      .def(
          "write",
          [](FakeDevice& device, uint64_t buffer, const py::bytes& data) {
            device.Write(buffer, BytesOf(data));
          },
          py::arg("buffer"), py::arg("data"))
      .def("step", &Step, py::arg("buffers"), py::arg("writes"), py::arg("cost_ns") = 0,
           py::arg("fails") = false)
      .def(
          "pause", [](FakeDevice& device, const std::string& queue) { device.Pause(QueueNamed(queue)); },
          py::arg("queue"))
      .def(
          "resume", [](FakeDevice& device, const std::string& queue) { device.Resume(QueueNamed(queue)); },
          py::arg("queue"))
      .def(
          "run",
          [](FakeDevice& device, const std::string& queue, uint64_t operations) {
            device.Run(QueueNamed(queue), operations);
          },
          py::arg("queue"), py::arg("operations"))
      .def(
          "await_queued",
          [](const FakeDevice& device, const std::string& queue, uint64_t operations, double timeout_s) {
            return WithoutGil([&] { return device.AwaitQueued(QueueNamed(queue), operations, timeout_s); });
          },
          py::arg("queue"), py::arg("operations"), py::arg("timeout_s") = 60.0)
      .def(
          "await_idle",
          [](const FakeDevice& device, const std::string& queue, double timeout_s) {
            return WithoutGil([&] { return device.AwaitIdle(QueueNamed(queue), timeout_s); });
          },
          py::arg("queue"), py::arg("timeout_s") = 60.0)
      .def("fail_copies", &FakeDevice::FailCopies, py::arg("count"))
      .def("held", &FakeDevice::held)
      .def("log", &Log);
}

}  // namespace tpu_sync_native
