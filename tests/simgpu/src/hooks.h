// What PyTorch's CPU library asks of a library for CUDA (or for PrivateUse1) that it doesn't link.
#pragma once
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <torch/csrc/profiler/stubs/base.h>

#include "generators.h"
#include "guard.h"
#include "memory.h"

namespace sim {

#ifdef SIM_AS_CUDA
using HooksInterface = at::CUDAHooksInterface;
#else
using HooksInterface = at::PrivateUse1HooksInterface;
#endif

struct Hooks final : HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  void setCurrentDevice(DeviceIndex device) const override { Guard().setDevice(Device(kType, device)); }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override {
    return Guard().exchangeDevice(Device(kType, device)).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* one = new PinnedAllocator();
    return one;
  }
  Device getDeviceFromPtr(void* data) const override {
    Lock lock(mutex);
    auto found = blocks.find(data);
    return Device(kType, found == blocks.end() ? current : found->second.device);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(DeviceIndex device) const override { return new_generator(device); }
#ifdef SIM_AS_CUDA
  bool hasCUDA() const override { return true; }
  DeviceIndex current_device() const override { return current; }
  int getNumGPUs() const override { return kDevices; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &allocator(); }
  void deviceSynchronize(DeviceIndex device) const override { Guard().synchronizeDevice(device); }
  std::string showConfig() const override { return "simulated"; }
#else
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    c10::DeviceGuard guard(storage.device());
    auto data = allocator().allocate(size);
    if (size && storage.nbytes()) memcpy(data.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
#endif
};

struct Profiler final : torch::profiler::impl::ProfilerStubs {
  using Stub = torch::profiler::impl::ProfilerVoidEventStub;
  void record(c10::DeviceIndex* device, Stub*, int64_t* time) const override {
    if (device) *device = current;
    if (time) *time = std::chrono::steady_clock::now().time_since_epoch().count();
  }
  float elapsed(const Stub*, const Stub*) const override { return 0; }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> f) const override { for (int i = 0; i < kDevices; i++) f(i); }
  void synchronize() const override {}
};

inline void register_hooks() {
  c10::SetAllocator(kType, &allocator());
#ifdef SIM_AS_CUDA
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks", [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> { return std::make_unique<Hooks>(); });
  torch::profiler::impl::registerCUDAMethods(new Profiler());
#else
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  torch::profiler::impl::registerPrivateUse1Methods(new Profiler());
#endif
}

}  // namespace sim
