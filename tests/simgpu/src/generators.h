// Random generators: each device has one of the CPU's kind, so that draws are those of the CPU.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include "common.h"

namespace sim {

struct Generator final : c10::GeneratorImpl {
  at::Generator inner;
  uint64_t offset = 0;
  Generator(DeviceIndex device, at::Generator inner)
      : GeneratorImpl(Device(kType, device), c10::DispatchKeySet(kKey)), inner(std::move(inner)) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); offset = 0; }
  void set_offset(uint64_t value) override { offset = value; }
  uint64_t get_offset() const override { return offset; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }
  Generator* clone_impl() const override { return new Generator(device_.index(), inner.clone()); }
};

inline at::Generator new_generator(DeviceIndex device) {
  return at::make_generator<Generator>(device < 0 ? current : device, at::detail::createCPUGenerator());
}

inline const at::Generator& default_generator(DeviceIndex device) {
  static auto* all = new std::vector<at::Generator>{new_generator(0), new_generator(1)};
  return (*all)[device < 0 ? current : device];
}

inline at::Generator inner_of(const at::Generator& generator) {
  return static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->inner;
}

// A kernel that takes no generator, such as that of dropout, draws from the CPU's default generator.
// While it runs, that one holds the state of the device's.
struct SwappedGenerator {
  at::CPUGeneratorImpl* cpu;
  at::CPUGeneratorImpl* own;
  explicit SwappedGenerator(DeviceIndex device)
      : cpu(at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator())),
        own(at::check_generator<at::CPUGeneratorImpl>(inner_of(default_generator(device)))) { swap(); }
  ~SwappedGenerator() { swap(); }
  void swap() {
    std::lock_guard<std::mutex> lock(cpu->mutex_);
    auto engine = cpu->engine();
    auto next_float = cpu->next_float_normal_sample();
    auto next_double = cpu->next_double_normal_sample();
    cpu->set_engine(own->engine());
    cpu->set_next_float_normal_sample(own->next_float_normal_sample());
    cpu->set_next_double_normal_sample(own->next_double_normal_sample());
    own->set_engine(engine);
    own->set_next_float_normal_sample(next_float);
    own->set_next_double_normal_sample(next_double);
  }
};

}  // namespace sim
