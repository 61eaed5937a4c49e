// The module for Python. The README of this folder says how the parts work together.
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/pybind.h>

#include "hooks.h"
#include "messages.h"
#ifndef SIM_AS_CUDA
#include "autocast.h"
#endif

using namespace sim;

namespace {

// The statistics of a device's memory, by the names of torch.cuda.memory_stats.
std::map<std::string, int64_t> memory_stats(int device) {
  auto& stats = memories[device].stats;
  std::map<std::string, int64_t> found{{"num_alloc_retries", stats.num_alloc_retries}, {"num_ooms", stats.num_ooms}};
  auto put = [&](const std::string& name, c10::CachingAllocator::StatArray& array) {
    auto& one = array[0];
    found[name + ".all.current"] = one.current;
    found[name + ".all.peak"] = one.peak;
    found[name + ".all.allocated"] = one.allocated;
    found[name + ".all.freed"] = one.freed;
  };
  put("allocation", stats.allocation);
  put("segment", stats.segment);
  put("active", stats.active);
  put("inactive_split", stats.inactive_split);
  put("allocated_bytes", stats.allocated_bytes);
  put("reserved_bytes", stats.reserved_bytes);
  put("active_bytes", stats.active_bytes);
  put("inactive_split_bytes", stats.inactive_split_bytes);
  put("requested_bytes", stats.requested_bytes);
  return found;
}

}  // namespace

PYBIND11_MODULE(SIM_MODULE, m) {
  register_hooks();
  // From the list of PyTorch's operations, which Python reads.
  m.def("use_kernels_of_the_cpu", &use_kernels_of_the_cpu);
  m.def("allow_scalars_of_the_cpu", [](const std::vector<std::string>& names) { mixing = {names.begin(), names.end()}; });
  // For torch.cuda, or torch.sim.
  m.def("initialize", &initialize);
  m.def("is_bad_fork", [] { return bad_fork; });
  m.def("device_count", [] { return kDevices; });
  m.def("current_device", [] { return (int)current; });
  m.def("set_device", [](int device) { Guard().setDevice(Device(kType, device)); });
  m.def("synchronize", [](int device) { Guard().synchronizeDevice(device); });
  m.def("default_generator", [](int device) {
    return py::reinterpret_borrow<py::object>(THPGenerator_initDefaultGenerator(default_generator(device)));
  });
  m.def("memory_stats", &memory_stats);
  m.def("reset_peaks", [](int device) { reset_peaks(device); });
  m.def("reset_accumulated", [](int device) { reset_accumulated(device); });
  m.def("observe_full_memory", [](py::function f) { observer = new py::function(f); });
  m.def("forbid_waits", [](bool on) { forbids_waits = on; });
  m.def("forbids_waits", [] { return forbids_waits; });
  m.def("as_cpu", &as_cpu);
  m.def("resize_storage", &resize_storage);
  // For tests.
  m.def("waits", [] { return waits; });
  m.def("calls", [] { return calls; });
  m.def("races", [] { return races; });
  m.def("reset", [] { races.clear(); freed.clear(); waits.clear(); calls.clear(); });
  m.def("set_poison", [](bool on) { poison = on; });
  m.def("set_limit", [](int device, int64_t bytes) { memories[device].limit = bytes; });
  m.def("fail_in", [](int device, int64_t n) { memories[device].fail_in = n; });
}
