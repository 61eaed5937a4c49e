// What every part shares: the device that is simulated, and the lock.
#pragma once
#include <ATen/Tensor.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace sim {

namespace py = pybind11;
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::IValue;

// SIM_AS_CUDA: the devices are "cuda:0" and "cuda:1". Otherwise they belong to PrivateUse1, the
// place that PyTorch keeps for a backend that it doesn't know.
#ifdef SIM_AS_CUDA
constexpr auto kType = c10::DeviceType::CUDA;
constexpr auto kKey = c10::DispatchKey::CUDA;
#define SIM_KEY CUDA
#else
constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr auto kKey = c10::DispatchKey::PrivateUse1;
#define SIM_KEY PrivateUse1
#endif
constexpr int kDevices = 2;

// Autograd runs backward passes in threads of its own, one for each device.
inline std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

inline thread_local DeviceIndex current = 0;

inline DeviceIndex index_of(std::optional<Device> device) {
  return device && device->has_index() ? device->index() : current;
}

inline bool is_sim(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// A process that forks after it has used CUDA can't use it in the child.
inline bool initialized = false, bad_fork = false;

inline void initialize() {
  TORCH_CHECK(!bad_fork, "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
      "multiprocessing, you must use the 'spawn' start method");
  if (!initialized) pthread_atfork(nullptr, nullptr, [] { bad_fork = true; });
  initialized = true;
}

}  // namespace sim
