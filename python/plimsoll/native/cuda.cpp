// PyTorch's CUDA allocator while Plimsoll records or replays a step (`log.h`), and PyTorch's own at all other times.
//
// It stands in front of PyTorch's caching allocator and forwards every call to it, so that statistics, snapshots, graphs and
// streams are PyTorch's own. `forwards.inc`, which is generated from the header of the installed torch, forwards all functions
// that are not written here: the interface changes in almost every version. Only the allocations of one thread on one device are
// logged and planned, and only while that thread records or replays.
//
// Planned memory needs no `record_stream`: the plan orders uses by other streams with events.
// Compiled at first use. Seen to compile with torch 2.6, 2.11 and 2.15; it has never run on a GPU.

#include "log.h"

#include <c10/core/GradMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <tuple>
#include <utility>

namespace plimsoll {
namespace {

using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;

// Types of a member function of PyTorch's, for `forwards.inc`.
template <class Function>
struct Signature;
template <class Return, class Class, class... Types>
struct Signature<Return (Class::*)(Types...)> {
  using Result = Return;
  using Arguments = std::tuple<Types...>;
};
template <class Return, class Class, class... Types>
struct Signature<Return (Class::*)(Types...) const> {
  using Result = Return;
  using Arguments = std::tuple<Types...>;
};
template <auto function>
using Result = typename Signature<decltype(function)>::Result;
template <auto function, size_t position>
using Argument = std::tuple_element_t<position, typename Signature<decltype(function)>::Arguments>;

Base* caching = nullptr;                 // PyTorch's
c10::DeleterFnPtr caching_free = nullptr;  // its deleter
int64_t device = -1;                     // device whose allocations are recorded or planned

void free_recorded(void* address) {
  log_free(address);
  caching->raw_delete(address);
}

// Deleter for memory whose owner holds a bare address.
void free_raw(void* address) {
  if (!give_back(address)) free_recorded(address);
}

// PyTorch's allocator cuts only larger allocations than this from large blocks, such as a pool that was given back.
constexpr size_t SMALL_BYTES = 1 << 20;

// Lends pools to an allocation without gradients, as in evaluation and sampling, that would exceed their budget.
void lend_above_budget(size_t bytes) {
  if (bytes <= SMALL_BYTES || open_pools.load(std::memory_order_relaxed) == 0) return;
  if (mode != Mode::Pass || c10::GradMode::is_enabled()) return;
  const auto current = c10::cuda::current_device();
  const int64_t taken = caching->getDeviceStats(current).allocated_bytes[0].current;  // 0: blocks of all sizes
  lend_pools(current, taken + static_cast<int64_t>(bytes));
}

// Allocates by PyTorch's own allocator.
template <class Allocate>
auto own(size_t bytes, Allocate allocate) -> decltype(allocate()) {
  lend_above_budget(bytes);
  return counted(c10::cuda::current_device(), allocate);
}

bool is_ours(size_t bytes) {
  return bytes != 0 && mode != Mode::Pass && c10::cuda::current_device() == device;
}

struct PlannedAllocator final : Base {
  c10::DataPtr allocate(size_t bytes) override {
    if (void* address = next_window()) return {address, c10::Device(c10::DeviceType::CUDA, c10::cuda::current_device())};
    if (!is_ours(bytes)) return own(bytes, [&] { return caching->allocate(bytes); });
    const c10::Device cuda(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device));
    if (mode == Mode::Replay) {
      if (void* address = planned_address(bytes)) return {address, address, &free_lent, cuda};
      c10::DataPtr unplanned = own(bytes, [&] { return caching->allocate(bytes); });
      log_unplanned(unplanned.get(), bytes);
      return unplanned;
    }
    c10::DataPtr made = own(bytes, [&] { return caching->allocate(bytes); });
    if (made.get_deleter() != caching_free || made.get() != made.get_context()) return made;  // not the cache's: not logged
    void* address = made.release_context();
    log_allocation(address, bytes);
    return {address, address, &free_recorded, cuda};
  }

  void* raw_alloc(size_t bytes) override {
    return placed(bytes, [&] { return caching->raw_alloc(bytes); });
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return placed(bytes, [&] { return caching->raw_alloc_with_stream(bytes, stream); });
  }

  void raw_delete(void* address) override { free_raw(address); }

  c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { caching->copy_data(to, from, bytes); }

  bool is_simple_data_ptr(const c10::DataPtr& pointer) const override { return caching->is_simple_data_ptr(pointer); }

  using Base::recordStream;
  void recordStream(const c10::DataPtr& pointer, c10::cuda::CUDAStream stream) override {
    const auto free = pointer.get_deleter();
    if (free == &free_lent) return;
    if (free != &free_recorded && free != &free_raw) return caching->recordStream(pointer, stream);
    // PyTorch's allocator recognises its own memory by the deleter.
    c10::DataPtr same(pointer.get(), pointer.get(), caching_free, pointer.device());
    try {
      caching->recordStream(same, stream);
    } catch (...) {
      same.release_context();
      throw;
    }
    same.release_context();
  }

#include "forwards.inc"

 private:
  template <class Allocate>
  void* placed(size_t bytes, Allocate allocate) {
    if (!is_ours(bytes)) return own(bytes, allocate);
    if (mode == Mode::Replay) {
      if (void* address = planned_address(bytes)) return address;
    }
    void* address = own(bytes, allocate);
    mode == Mode::Record ? log_allocation(address, bytes) : log_unplanned(address, bytes);
    return address;
  }
};

PlannedAllocator& planned = *new PlannedAllocator;  // never destroyed

}  // namespace

void* take_memory(const Pool& pool) noexcept {
  try {
    const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(pool.device));
    return counted(pool.device, [&] { return caching->raw_alloc(pool.bytes); });
  } catch (...) {
    return nullptr;
  }
}

void give_memory(void* address) noexcept { caching->raw_delete(address); }

}  // namespace plimsoll

extern "C" {

// Installs this allocator in front of PyTorch's, once. CUDA is initialised by then.
void plimsoll_install() {
  using namespace plimsoll;
  if (caching == nullptr) {
    caching = c10::cuda::CUDACachingAllocator::get();
    caching_free = caching->raw_deleter();
    c10::cuda::CUDACachingAllocator::allocator.store(&planned);
  }
}

// Returns 1 if no other allocator was installed over this one.
int plimsoll_is_installed() { return c10::cuda::CUDACachingAllocator::get() == &plimsoll::planned; }

// Sets the device whose allocations are recorded or planned.
void plimsoll_device(int64_t number) { plimsoll::device = number; }

}  // extern "C"
