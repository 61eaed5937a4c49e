// The memory of the devices, which is host memory with a limit and statistics, and pinned memory.
#pragma once
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include "order.h"

namespace sim {

using c10::CachingAllocator::Stat;
using c10::CachingDeviceAllocator::DeviceStats;

struct Memory {
  DeviceStats stats;
  int64_t limit = -1;  // bytes; -1: none
  int64_t fail_in = -1;  // this many allocations from now, one fails; -1: none
} inline memories[kDevices];

inline bool poison = false;  // fresh memory is NaN, to find what is read before it is written
inline py::function* observer = nullptr;  // told of a full memory
constexpr size_t kTotal = size_t(1) << 34;

template <typename F> void each_size(DeviceStats& stats, F f) {
  for (auto* one : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes, &stats.requested_bytes})
    f((*one)[0]);
}

template <typename F> void each_count(DeviceStats& stats, F f) {
  for (auto* one : {&stats.allocation, &stats.active, &stats.segment}) f((*one)[0]);
}

inline void reset_peaks(DeviceIndex device) {
  auto reset = [](Stat& one) { one.reset_peak(); };
  each_size(memories[device].stats, reset);
  each_count(memories[device].stats, reset);
}

inline void reset_accumulated(DeviceIndex device) {
  auto reset = [](Stat& one) { one.reset_accumulated(); };
  each_size(memories[device].stats, reset);
  each_count(memories[device].stats, reset);
}

inline void release(void* pointer) {
  if (!pointer) return;
  Lock lock(mutex);
  auto found = blocks.find(pointer);
  auto& block = found->second;
  auto& stats = memories[block.device].stats;
  each_size(stats, [&](Stat& one) { one.decrease(block.size); });
  each_count(stats, [](Stat& one) { one.decrease(1); });
  stats.num_device_free++;
  freed[block.home].push_back(std::move(block));
  blocks.erase(found);
  c10::free_cpu(pointer);
}

[[noreturn]] inline void raise_out_of_memory(DeviceIndex device, size_t size) {
  auto& memory = memories[device];
  memory.stats.num_ooms++;
  auto free = std::max<int64_t>(memory.limit - memory.stats.allocated_bytes[0].current, 0);
  if (observer) {
    py::gil_scoped_acquire gil;
    try {
      (*observer)((int)device, size, memory.limit, free);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("observer of a full memory");
    }
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size, " bytes. Simulated GPU ",
      (int)device, " has a total capacity of ", memory.limit, " bytes of which ", free, " bytes is free.");
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t asked) override {
    TORCH_CHECK(!bad_fork, "Cannot re-initialize CUDA in forked subprocess");
    auto device = current;
    if (!asked) return {nullptr, nullptr, &release, Device(kType, device)};
    size_t size = (asked + 511) / 512 * 512;  // as CUDA's allocator rounds
    Lock lock(mutex);
    auto& memory = memories[device];
    bool full = memory.limit >= 0 && memory.stats.allocated_bytes[0].current + (int64_t)size > memory.limit;
    if (memory.fail_in >= 0) full |= memory.fail_in-- == 0;
    if (full) raise_out_of_memory(device, size);
    auto home = key_of(device, streams[device]);
    check_reuse(home);
    void* pointer = c10::alloc_cpu(size);
    if (poison) memset(pointer, 0xff, size);  // every float with all bits set is a NaN
    blocks.emplace(pointer, Block{device, size, home});
    each_size(memory.stats, [&](Stat& one) { one.increase(size); });
    each_count(memory.stats, [](Stat& one) { one.increase(1); });
    memory.stats.num_device_alloc++;
    return {pointer, pointer, &release, Device(kType, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(DeviceIndex device) override { return memories[device].stats; }
  void resetAccumulatedStats(DeviceIndex device) override { reset_accumulated(device); }
  void resetPeakStats(DeviceIndex device) override { reset_peaks(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    auto& memory = memories[device];
    size_t total = memory.limit < 0 ? kTotal : memory.limit;
    return {total - memory.stats.allocated_bytes[0].current, total};
  }
};

inline Allocator& allocator() {
  static auto* one = new Allocator();
  return *one;
}

// ---- page-locked memory of the host, which is ordinary memory that is remembered ----

inline std::unordered_map<void*, size_t> pinned;

inline void unpin(void* pointer) {
  Lock lock(mutex);
  pinned.erase(pointer);
  c10::free_cpu(pointer);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    Lock lock(mutex);
    void* pointer = c10::alloc_cpu(size ? size : 1);
    pinned[pointer] = size;
    return {pointer, pointer, &unpin, Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

inline bool is_pinned(const void* pointer) {
  Lock lock(mutex);
  for (auto& [start, size] : pinned)
    if (pointer >= start && pointer < (char*)start + std::max<size_t>(size, 1)) return true;
  return false;
}

}  // namespace sim
