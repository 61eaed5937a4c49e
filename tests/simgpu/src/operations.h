// The operations: nearly all go through one fallback, which calls the CPU's kernel.
//
// PyTorch's dispatcher calls the fallback with the operation and its arguments on a stack. It checks
// what CUDA would check, replaces each tensor of the device by one of the CPU on the same memory,
// calls the operation again for the CPU, and takes over what that did to memory and shapes.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "generators.h"
#include "guard.h"
#include "memory.h"

namespace sim {

// The tensors of one call as the CPU sees them: other objects on the same memory.
struct Call {
  struct Seen {
    c10::Storage sim, cpu;
    void* data;  // where it was, and how large, before the call
    size_t size;
  };
  std::string what;
  std::vector<Seen> seen;
  std::vector<std::pair<Tensor, Tensor>> pairs;  // simulated, CPU

  c10::Storage cpu_storage(const c10::Storage& sim) {
    for (auto& one : seen)
      if (one.sim.unsafeGetStorageImpl() == sim.unsafeGetStorageImpl()) return one.cpu;
    auto* data = sim.mutable_data();
    c10::Storage cpu(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), sim.nbytes(), c10::DataPtr(data, Device(c10::DeviceType::CPU)),
        c10::GetCPUAllocator(), true));
    seen.push_back({sim, cpu, data, sim.nbytes()});
    return cpu;
  }

  // Memory that the kernel has allocated, as memory of the device.
  c10::Storage sim_storage(const c10::Storage& cpu, DeviceIndex device) {
    for (auto& one : seen)
      if (one.cpu.unsafeGetStorageImpl() == cpu.unsafeGetStorageImpl()) return one.sim;
    c10::DeviceGuard guard(Device(kType, device));
    auto data = allocator().allocate(cpu.nbytes());
    if (cpu.nbytes()) memcpy(data.get(), cpu.data(), cpu.nbytes());
    uses(data.get(), true, what);
    c10::Storage sim(c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), cpu.nbytes(), std::move(data), &allocator(), true));
    seen.push_back({sim, cpu, cpu.mutable_data(), cpu.nbytes()});
    return sim;
  }

  static const c10::Storage& storage_of(const Tensor& tensor) {
    TORCH_CHECK(tensor.layout() == c10::kStrided, "the simulation has no layout ", tensor.layout());
    return tensor.storage();
  }

  static Tensor like(const Tensor& other, c10::Storage storage, c10::DispatchKey key) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), other.dtype());
    impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
    if (other.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
    Tensor result(std::move(impl));
    if (other.is_conj()) result._set_conj(true);
    if (other.is_neg()) result._set_neg(true);
    return result;
  }

  Tensor cpu(const Tensor& sim) {
    if (!is_sim(sim)) return sim;
    for (auto& one : pairs)
      if (one.first.is_same(sim)) return one.second;
    auto result = like(sim, cpu_storage(storage_of(sim)), c10::DispatchKey::CPU);
    pairs.emplace_back(sim, result);
    return result;
  }

  Tensor sim(const Tensor& cpu, DeviceIndex device) {
    if (!cpu.defined() || !cpu.device().is_cpu()) return cpu;
    for (auto& one : pairs)
      if (one.second.is_same(cpu)) return one.first;
    return like(cpu, sim_storage(storage_of(cpu), device), kKey);
  }

  // Take over what the operation did to the memory and the shapes of its arguments.
  void finish(DeviceIndex device) {
    auto count = seen.size();
    for (size_t i = 0; i < count; i++) {
      auto one = seen[i];
      auto size = one.cpu.nbytes();
      if (one.cpu.mutable_data() == one.data && size == one.size) continue;
      c10::DeviceGuard guard(one.sim.device());
      auto data = allocator().allocate(size);
      if (size) memcpy(data.get(), one.cpu.data(), size);
      one.sim.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
      one.sim.unsafeGetStorageImpl()->set_nbytes(size);
    }
    for (auto& [sim, cpu] : pairs) {
      auto* impl = sim.unsafeGetTensorImpl();
      auto storage = sim_storage(cpu.storage(), device);
      if (storage.unsafeGetStorageImpl() != sim.storage().unsafeGetStorageImpl()) impl->set_storage_keep_dtype(storage);
      if (cpu.sizes() != sim.sizes() || cpu.strides() != sim.strides() || cpu.storage_offset() != sim.storage_offset())
        impl->set_sizes_and_strides(cpu.sizes(), cpu.strides(), cpu.storage_offset());
    }
  }
};

// ---- what CUDA refuses, and what waits ----

// Call f with each tensor of an argument, and whether it is in a list.
template <typename F> void each_tensor(const IValue& value, F f) {
  if (value.isTensor()) {
    f(value.toTensor(), false);
  } else if (value.isList()) {
    for (const IValue& one : value.toListRef())
      if (one.isTensor()) f(one.toTensor(), true);
  }
}

inline bool indexes(const std::string& name) {
  static const std::unordered_set<std::string> names{
      "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
      "aten::_unsafe_index_put"};
  return names.count(name);
}

// Operations that allow scalars of the CPU among tensors of a device.
inline std::unordered_set<std::string> mixing;

inline void check_devices(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  const auto& schema = op.schema();
  const auto& name = schema.name();
  bool mixes = mixing.count(schema.overload_name().empty() ? name : name + "." + schema.overload_name());
  std::optional<Device> common;
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    bool writes = alias && alias->isWrite(), views = alias && !writes;  // a view touches no memory
    each_tensor(arguments[i], [&](const Tensor& tensor, bool listed) {
      if (is_sim(tensor) && !views) uses(tensor.storage().mutable_data(), writes, name);
      if (!tensor.defined() || tensor.device().is_meta()) return;
      auto device = tensor.device();
      if (device.is_cpu() && !writes && tensor.dim() == 0 && mixes) return;
      if (device.is_cpu() && listed && indexes(name) && common && common->type() == kType) {
        count_wait(name + " with indices of the CPU");  // which are copied
        return;
      }
      if (!common) common = device;
      TORCH_CHECK(*common == device, "Expected all tensors to be on the same device, but found at least two "
          "devices, ", *common, " and ", device, "! (", name, ")");
    });
  }
}

// Does the shape of the result, or the result itself, depend on values?
inline bool reads_values(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
  if (indexes(op.schema().name())) {
    bool by_mask = false;  // whose size is read; other indices give the shape
    each_tensor(arguments[1], [&](const Tensor& one, bool) {
      by_mask |= one.defined() && (one.scalar_type() == at::kBool || one.scalar_type() == at::kByte);
    });
    return by_mask;
  }
  if (op.schema().name() == "aten::repeat_interleave" && !arguments.back().isNone()) return false;  // output_size
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

inline DeviceIndex device_of(const std::vector<IValue>& arguments) {
  for (const auto& value : arguments) {
    std::optional<DeviceIndex> found;
    each_tensor(value, [&](const Tensor& one, bool) {
      if (!found && is_sim(one)) found = one.device().index();
    });
    if (found) return *found;
    if (value.isDevice() && value.toDevice().type() == kType) return index_of(value.toDevice());
  }
  return current;
}

// ---- the fallback ----

// Replace each tensor of an argument or a result.
template <typename F> IValue mapped(const IValue& value, F f) {
  if (value.isTensor()) return f(value.toTensor());
  bool any = false;
  each_tensor(value, [&](const Tensor&, bool) { any = true; });
  if (!any) return value;
  if (value.isTensorList()) {
    c10::List<Tensor> result;
    for (const IValue& one : value.toListRef()) result.push_back(f(one.toTensor()));
    return result;
  }
  c10::List<std::optional<Tensor>> result;
  for (const IValue& one : value.toListRef())
    result.push_back(one.isTensor() ? std::optional<Tensor>(f(one.toTensor())) : std::nullopt);
  return result;
}

inline at::Generator checked(const at::Generator& given, DeviceIndex device) {
  TORCH_CHECK(given.device().type() == kType, "Expected a 'cuda' device type for generator but found '", given.device(), "'");
  TORCH_CHECK(given.device().index() == device, "Expected a generator of device ", (int)device, " but found ", given.device());
  return inner_of(given);
}

inline void call_on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  unwatched++;
  struct Watch { ~Watch() { unwatched--; } } watch_again;
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

inline void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto arguments = torch::jit::pop(*stack, schema.arguments().size());
  auto device = device_of(arguments);
  check_devices(op, arguments);
  if (reads_values(op, arguments)) {
    count_wait(schema.name());
    Guard().end(Guard().getStream(Device(kType, device)));
  }

  Call call{schema.name()};
  bool draws = op.hasTag(at::Tag::nondeterministic_seeded), takes_generator = false;
  for (size_t i = 0; i < arguments.size(); i++) {
    const auto& value = arguments[i];
    if (value.isGenerator()) {
      takes_generator = true;
      stack->push_back(checked(value.toGenerator(), device));
    } else if (value.isNone() && schema.arguments()[i].type()->str() == "Generator?") {
      takes_generator = true;
      stack->push_back(draws ? IValue(inner_of(default_generator(device))) : value);
    } else if (value.isDevice() && value.toDevice().type() == kType) {
      stack->push_back(Device(c10::DeviceType::CPU));
    } else if (value.isStorage() && value.toStorage().device().type() == kType) {
      stack->push_back(call.cpu_storage(value.toStorage()));
    } else {
      stack->push_back(mapped(value, [&](const Tensor& one) { return call.cpu(one); }));
    }
  }
  {
    std::optional<SwappedGenerator> swapped;
    if (draws && !takes_generator) swapped.emplace(device);
    call_on_the_cpu(op, stack);
  }
  call.finish(device);
  for (auto& value : torch::jit::pop(*stack, schema.returns().size()))
    stack->push_back(mapped(value, [&](const Tensor& one) { return call.sim(one, device); }));
}

// ---- operations of their own: those that make tensors, and those that move them ----

inline Tensor empty(at::IntArrayRef sizes, std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
    std::optional<Device> device, std::optional<bool> pin, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(Device(kType, index_of(device)));
  return Tensor(at::detail::empty_generic(
      sizes, &allocator(), c10::DispatchKeySet(kKey), c10::dtype_or_default(type), format));
}

inline Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<c10::ScalarType> type,
    std::optional<c10::Layout>, std::optional<Device> device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  c10::DeviceGuard guard(Device(kType, index_of(device)));
  return Tensor(at::detail::empty_strided_generic(
      sizes, strides, &allocator(), c10::DispatchKeySet(kKey), c10::dtype_or_default(type)));
}

inline Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source)) return self;
  bool to_host = self.device().is_cpu(), from_host = source.device().is_cpu();
  bool blocks_host = (to_host || from_host) && !non_blocking;
  if (blocks_host) count_wait(to_host ? "copy to the CPU" : "copy from the CPU");
  else if (to_host && !is_pinned(self.storage().data())) count_wait("copy to pageable memory");
  if (is_sim(source)) uses(source.storage().mutable_data(), false, "copy_");
  if (is_sim(self)) uses(self.storage().mutable_data(), true, "copy_");
  if (blocks_host) Guard().end(Guard().getStream(to_host ? source.device() : self.device()));
  Call call{"copy_"};
  auto to = call.cpu(self), from = call.cpu(source);
  c10::impl::ExcludeDispatchKeyGuard guard(c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  to.copy_(from);
  return self;
}

inline Tensor copy_from(const Tensor& source, const Tensor& to, bool non_blocking) {
  auto self = to;
  return copy_(self, source, non_blocking);
}

inline Tensor copy_from_and_resize(const Tensor& source, const Tensor& to) {
  auto self = to;
  self.resize_(source.sizes());
  return copy_(self, source, false);
}

inline void record_stream(Tensor& tensor, c10::Stream stream) {
  count_call("record_stream");
  Guard().recordDataPtrOnStream(tensor.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(_, SIM_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, SIM_KEY, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("record_stream", &record_stream);
  // There is no library of losses: PyTorch's general path is taken.
  auto never = [](const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; };
  auto never_for_tensors = [](const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; };
  library.impl("_use_cudnn_ctc_loss", never);
  library.impl("_use_miopen_ctc_loss", never);
  library.impl("_use_cudnn_ctc_loss.Tensor", never_for_tensors);
  library.impl("_use_miopen_ctc_loss.Tensor", never_for_tensors);
}

// Operations with a kernel of the CPU and another for every backend, which would be taken.
inline void use_kernels_of_the_cpu(const std::vector<std::string>& names) {
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  for (auto& name : names)
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace sim
