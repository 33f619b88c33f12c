// PyTorch's CPU allocator while Plimsoll records or replays a step, and PyTorch's own at all other times.
//
// Recording, it logs what the recording thread allocates and frees. Replaying, it gives every allocation of a call the
// address that the plan has for it, in the order in which they were recorded, and counts those that the plan did not
// foresee; these come from the heap, so that no call computes with memory that is not its own. Allocations of other
// threads always come from the heap: they may come at any moment, and a plan cannot know them.
//
// One thread records or replays at a time. Compiled at first use against the headers of the torch that is installed:
// c10's allocator interface has no stable ABI. Seen with torch 2.6 and 2.15.

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace {

enum class Mode { Pass, Record, Replay };

struct Event {
  // Recording, 0: allocated; 1: freed by the recording thread; 2: freed by another thread.
  // Replaying, 0: given an address of the plan; 3: not foreseen by the plan; 4: a call begins, whose number is the address.
  int64_t kind;
  int64_t address;
  int64_t bytes;
};

struct Slot {
  int64_t address;
  int64_t bytes;
};

thread_local Mode mode = Mode::Pass;

std::mutex guard;  // of these three
std::vector<Event> events;
std::unordered_set<void*> recorded;  // alive, allocated while recording
std::unordered_set<void*> lent;      // alive, at addresses of the plan
std::atomic<bool> recording{false};

// The plan that is replayed. Slots of call i are those from first[i] up to first[i + 1].
const Slot* slots = nullptr;
const int64_t* first = nullptr;
int64_t call = -1, next_slot = 0, end_slot = 0;
int64_t served = 0, unplanned = 0, unplanned_bytes = 0, unused = 0, faulty_call = -1;

c10::Allocator* heap = nullptr;
std::atomic<int64_t> failures{0};  // allocations that found no memory

void log_free(void* address) {
  if (!recording.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(guard);
  if (recorded.erase(address)) {
    events.push_back({mode == Mode::Record ? 1 : 2, reinterpret_cast<int64_t>(address), 0});
  }
}

void free_recorded(void* address) {
  log_free(address);
  c10::free_cpu(address);
}

bool give_back(void* address) {
  std::lock_guard<std::mutex> lock(guard);
  return lent.erase(address) != 0;
}

void free_lent(void* address) { give_back(address); }  // the bytes stay the pool's

// For memory whose owner holds a bare address. What is lent is known one by one: a range of addresses would outlive its pool.
void free_raw(void* address) {
  if (give_back(address)) return;
  log_free(address);
  heap->raw_deleter()(address);
}

struct PlannedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    try {
      return place(bytes);
    } catch (...) {
      failures++;
      throw;
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_raw; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  c10::DataPtr place(size_t bytes) {
    if (bytes == 0 || mode == Mode::Pass) return heap->allocate(bytes);
    const c10::Device cpu(c10::DeviceType::CPU);
    if (mode == Mode::Record) {
      void* address = c10::alloc_cpu(bytes);
      std::lock_guard<std::mutex> lock(guard);
      recorded.insert(address);
      events.push_back({0, reinterpret_cast<int64_t>(address), static_cast<int64_t>(bytes)});
      return {address, address, &free_recorded, cpu};
    }
    if (next_slot < end_slot && slots[next_slot].bytes == static_cast<int64_t>(bytes)) {
      void* address = reinterpret_cast<void*>(slots[next_slot++].address);
      served++;
      std::lock_guard<std::mutex> lock(guard);
      lent.insert(address);
      events.push_back({0, reinterpret_cast<int64_t>(address), static_cast<int64_t>(bytes)});
      return {address, address, &free_lent, cpu};
    }
    unplanned++;
    unplanned_bytes += static_cast<int64_t>(bytes);
    if (faulty_call < 0) faulty_call = call;
    c10::DataPtr own = heap->allocate(bytes);
    std::lock_guard<std::mutex> lock(guard);
    events.push_back({3, reinterpret_cast<int64_t>(own.get()), static_cast<int64_t>(bytes)});
    return own;
  }
};

PlannedAllocator planned;

void end_call() {
  if (next_slot < end_slot) {
    unused += end_slot - next_slot;
    if (faulty_call < 0) faulty_call = call;
  }
}

}  // namespace

extern "C" {

void plimsoll_install() {
  if (heap == nullptr) {
    heap = c10::GetCPUAllocator();
    c10::SetCPUAllocator(&planned, 100);
  }
}

// Whether another allocator was installed over this one.
int plimsoll_is_installed() { return c10::GetCPUAllocator() == &planned; }

// How many allocations have found no memory since this was last called.
int64_t plimsoll_failures() { return failures.exchange(0); }

void plimsoll_record(int on) {
  std::lock_guard<std::mutex> lock(guard);
  if (on) {
    events.clear();
    recorded.clear();
  }
  mode = on ? Mode::Record : Mode::Pass;
  recording = on != 0;
}

int64_t plimsoll_events() { return static_cast<int64_t>(events.size()); }

void plimsoll_read_events(int64_t from, int64_t to, int64_t* out) {
  std::lock_guard<std::mutex> lock(guard);
  std::memcpy(out, events.data() + from, static_cast<size_t>(to - from) * sizeof(Event));
}

void plimsoll_begin(const int64_t* all_slots, const int64_t* first_of_call) {
  slots = reinterpret_cast<const Slot*>(all_slots);
  first = first_of_call;
  {
    std::lock_guard<std::mutex> lock(guard);
    events.clear();
  }
  call = -1;
  next_slot = end_slot = served = unplanned = unplanned_bytes = unused = 0;
  faulty_call = -1;
}

// What this thread allocates from here on belongs to the call.
void plimsoll_call(int64_t number) {
  end_call();
  call = number;
  next_slot = first[number];
  end_slot = first[number + 1];
  {
    std::lock_guard<std::mutex> lock(guard);
    events.push_back({4, number, 0});
  }
  mode = Mode::Replay;
}

// What this thread allocates from here on belongs to nobody's call.
void plimsoll_pause() { mode = Mode::Pass; }

void plimsoll_end(int64_t* out) {
  end_call();
  mode = Mode::Pass;
  next_slot = end_slot = 0;
  const int64_t counts[5] = {served, unplanned, unplanned_bytes, unused, faulty_call};
  std::memcpy(out, counts, sizeof counts);
}

}  // extern "C"
