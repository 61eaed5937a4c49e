// Devices, streams and events as PyTorch's core asks for them, and how often the host waited.
//
// A stream is a number here, and an event a copy of a stream's clock. Everything has ended when it
// is asked for, so that a wait takes no time: it is counted, and refused in sync debug mode "error".
#pragma once
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>

#include "order.h"

namespace sim {

inline bool forbids_waits = false;
inline thread_local int unwatched = 0;  // inside of a kernel, whose calls of other operations are no waits
inline std::unordered_map<std::string, int64_t> waits;  // by operation
inline std::unordered_map<std::string, int64_t> calls;  // of functions of streams

inline void count_wait(const std::string& what) {
  if (unwatched) return;
  {
    Lock lock(mutex);
    waits[what]++;
  }
  TORCH_CHECK(!forbids_waits, "called a synchronizing CUDA operation: ", what);
}

inline void count_call(const char* name) {
  Lock lock(mutex);
  calls[name]++;
}

struct Event {
  double time = 0;  // milliseconds
  Clock clock = {};
};

inline std::atomic<c10::StreamId> next_stream{0};  // 32 as in CUDA's pool: a wait of the host updates all clocks

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Device getDevice() const override { return Device(kType, current); }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.type() == kType, "not a simulated device: ", device);
    if (!device.has_index()) return;
    TORCH_CHECK(device.index() < kDevices, "CUDA error: invalid device ordinal ", (int)device.index());
    current = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index() && device.index() < kDevices) current = device.index();
  }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }

  c10::Stream stream(Device device, c10::StreamId id) const {
    return c10::Stream(c10::Stream::UNSAFE, Device(kType, index_of(device)), id);
  }
  c10::Stream getStream(Device device) const override { return stream(device, streams[index_of(device)]); }
  c10::Stream getDefaultStream(Device device) const override { return stream(device, 0); }
  c10::Stream getNewStream(Device device, int) const override { return stream(device, 1 + next_stream++ % 32); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto before = getStream(stream.device());
    streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return (void*)stream.id(); }
  bool queryStream(const c10::Stream&) const override { return true; }
  bool queryEvent(void*) const override { return true; }

  void record(void** event, const c10::Stream& stream, const DeviceIndex, const c10::EventFlag) const override {
    count_call("event_record");
    Lock lock(mutex);
    if (!*event) *event = new Event;
    auto now = std::chrono::steady_clock::now().time_since_epoch();
    *(Event*)*event = {std::chrono::duration<double, std::milli>(now).count(), clock_of(key_of(stream))};
  }
  void block(void* event, const c10::Stream& stream) const override {
    count_call("stream_wait_event");
    Lock lock(mutex);
    if (event) merge(clock_of(key_of(stream)), ((Event*)event)->clock);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete (Event*)event; }
  double elapsedTime(void* first, void* second, const DeviceIndex) const override {
    return ((Event*)second)->time - ((Event*)first)->time;
  }

  // What an operation that waits does after it was counted.
  void end(const c10::Stream& stream) const {
    Lock lock(mutex);
    host_waits_for(Clock(clock_of(key_of(stream))));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    count_call("stream_synchronize");
    count_wait("stream.synchronize");
    end(stream);
  }
  void synchronizeEvent(void* event) const override {
    count_call("event_synchronize");
    count_wait("event.synchronize");
    Lock lock(mutex);
    if (event) host_waits_for(((Event*)event)->clock);
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    count_call("device_synchronize");
    count_wait("synchronize");
    Lock lock(mutex);
    Clock all;
    for (auto& [key, one] : clocks)
      if (key >> 40 == device) merge(all, one);
    host_waits_for(all);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Lock lock(mutex);
    auto found = blocks.find(data.get());
    if (found != blocks.end()) found->second.recorded.insert(key_of(stream));
  }
  c10::DeviceCapability getDeviceCapability(Device) const override { return {}; }
};

inline c10::impl::DeviceGuardImplRegistrar guard_registrar(kType, new Guard());

}  // namespace sim
