// What messages between processes need: ../messages.py sends them.
#pragma once
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "operations.h"

namespace sim {

// The memory of a tensor as a tensor of the CPU, which the current stream reads or writes.
inline Tensor as_cpu(const Tensor& sim, bool writes) {
  Call call;
  if (is_sim(sim)) uses(sim.storage().mutable_data(), writes, "a message");
  return call.cpu(sim);
}

// FSDP frees the memory of gathered weights, and allocates it again, but keeps the tensors.
inline void resize_storage(const Tensor& sim, size_t size) {
  auto* storage = sim.storage().unsafeGetStorageImpl();
  c10::DeviceGuard guard(sim.device());
  auto data = allocator().allocate(size);
  if (auto kept = std::min(size, storage->nbytes())) memcpy(data.get(), storage->data(), kept);
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(size);
}

// DistributedDataParallel asks for the times of its device; these have no meaning.
struct Timer final : c10d::Timer {
  explicit Timer(Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

inline bool timed = [] {
  c10d::TimerRegistry()->Register(kType, [](Device device) -> std::unique_ptr<c10d::Timer> {
    return std::make_unique<Timer>(device);
  });
  return true;
}();

}  // namespace sim
