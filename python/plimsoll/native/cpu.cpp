// PyTorch's CPU allocator while Plimsoll records or replays a step (`log.h`), and PyTorch's own at all other times.
//
// Compiled at first use against the headers of the installed torch: c10's allocator interface has no stable ABI.
// Seen with torch 2.6 and 2.15.

#include "log.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

namespace plimsoll {
namespace {

c10::Allocator* heap = nullptr;

void free_recorded(void* address) {
  log_free(address);
  c10::free_cpu(address);
}

// Deleter for memory whose owner holds a bare address.
void free_raw(void* address) {
  if (give_back(address)) return;
  log_free(address);
  heap->raw_deleter()(address);
}

struct PlannedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (void* address = next_window()) return {address, c10::Device(c10::DeviceType::CPU)};
    return place(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  c10::DataPtr place(size_t bytes) {
    if (bytes == 0 || mode == Mode::Pass) return own(bytes);
    const c10::Device cpu(c10::DeviceType::CPU);
    if (mode == Mode::Record) {
      void* address = counted(0, [&] { return c10::alloc_cpu(bytes); });
      log_allocation(address, bytes);
      return {address, address, &free_recorded, cpu};
    }
    if (void* address = planned_address(bytes)) return {address, address, &free_lent, cpu};
    c10::DataPtr unplanned = own(bytes);
    log_unplanned(unplanned.get(), bytes);
    return unplanned;
  }

  static c10::DataPtr own(size_t bytes) {
    return counted(0, [&] { return heap->allocate(bytes); });
  }
};

PlannedAllocator& planned = *new PlannedAllocator;  // never destroyed

}  // namespace

void* take_memory(const Pool& pool) noexcept {
  try {
    return counted(pool.device, [&] { return c10::alloc_cpu(pool.bytes); });
  } catch (...) {
    return nullptr;
  }
}

void give_memory(void* address) noexcept { c10::free_cpu(address); }

}  // namespace plimsoll

extern "C" {

void plimsoll_install() {
  using namespace plimsoll;
  if (heap == nullptr) {
    heap = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&planned, 100);
  }
}

// Returns 1 if no other allocator was installed over this one.
int plimsoll_is_installed() { return c10::GetCPUAllocator() == &plimsoll::planned; }

}  // extern "C"
