// State of Plimsoll's allocators while a step is recorded or replayed; it is compiled with one of them at a time.
//
// Recording, an allocator logs the allocations and frees of the recording thread. Replaying, it gives every allocation of a call
// its address in the plan, in the recorded order, and counts those that the plan did not foresee. The latter come from PyTorch's
// own allocator, so that each call computes only with its own memory. Allocations of other threads always come from there: they
// may come at any moment, and a plan cannot know them.
//
// One thread records or replays at a time.
//
// Between steps other code may have a step's pool. The pool is given back to PyTorch's allocator as a whole when an allocation
// would find no memory without it, or would exceed the budget; the next step takes it anew, mostly at the same address. Tensors
// on the pool are windows, which own nothing.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <vector>

namespace plimsoll {

enum class Mode { Pass, Record, Replay };

struct Event {
  // Recording, 0: allocated; 1: freed by the recording thread; 2: freed by another thread.
  // Replaying, 0: given an address of the plan; 3: not foreseen by the plan; 4: a call begins, its number in `address`.
  int64_t kind;
  int64_t address;
  int64_t bytes;
};

struct Slot {
  int64_t address;
  int64_t bytes;
};

inline thread_local Mode mode = Mode::Pass;

// Never destroyed: memory may be freed until the process has ended.
inline std::mutex& guard = *new std::mutex;  // of the next three
inline std::vector<Event>& events = *new std::vector<Event>;
inline std::unordered_set<void*>& recorded = *new std::unordered_set<void*>;  // alive, allocated while recording
inline std::unordered_set<void*>& lent = *new std::unordered_set<void*>;      // alive, at addresses of the plan
inline std::atomic<bool> recording{false};

// The replayed plan. Call i has the slots first[i]..first[i + 1], half-open.
inline const Slot* slots = nullptr;
inline const int64_t* first = nullptr;
inline int64_t call = -1, next_slot = 0, end_slot = 0;
inline int64_t served = 0, unplanned = 0, unplanned_bytes = 0, unused = 0, faulty_call = -1;

// Bytes for single numbers that calls make on the device only while they are captured as a graph: the seeds of attention, which
// lie on the host otherwise. They last until the next call, and exist only in a capture.
constexpr int64_t SPARE_SLOT = 256, SPARE_BYTES = 8;
inline int64_t spare = 0, spare_end = 0, next_spare = 0;

inline std::atomic<int64_t> failures{0};  // allocations that found no memory

struct Pool {
  void* address;
  size_t bytes;
  int64_t device;
  int64_t budget;  // limit of all allocations while the pool is lent to code without gradients; -1: none
  bool is_there;   // the step has it, not lent
  bool is_open;    // between steps: may be lent
};

inline std::mutex& pools_guard = *new std::mutex;
inline std::vector<Pool*>& pools = *new std::vector<Pool*>;
inline std::atomic<int> open_pools{0};  // number of open pools that are not lent
inline thread_local void* window = nullptr;  // address for the next allocation of this thread, which owns nothing

// Implemented by each allocator: takes memory from PyTorch's for a pool, or returns null; and gives it back.
void* take_memory(const Pool& pool) noexcept;
void give_memory(void* address) noexcept;

// Gives open pools of a device back to PyTorch's allocator: all of them, or those whose budget is below `taken`. Returns true if
// there was any.
inline bool lend_pools(int64_t device, int64_t taken = -1) {
  if (open_pools.load(std::memory_order_relaxed) == 0) return false;
  std::lock_guard<std::mutex> lock(pools_guard);
  bool is_lent = false;
  for (Pool* pool : pools) {
    if (!pool->is_open || !pool->is_there || pool->device != device) continue;
    if (taken >= 0 && (pool->budget < 0 || taken <= pool->budget)) continue;
    give_memory(pool->address);
    pool->is_there = false;
    open_pools--;
    is_lent = true;
  }
  return is_lent;
}

// Allocates; if no memory is found, lends the open pools and tries again.
template <class Allocate>
auto counted(int64_t device, Allocate allocate) -> decltype(allocate()) {
  try {
    return allocate();
  } catch (...) {
    if (!lend_pools(device)) {
      failures++;
      throw;
    }
  }
  try {
    return allocate();
  } catch (...) {
    failures++;
    throw;
  }
}

// Returns the address for the next allocation, once.
inline void* next_window() {
  void* address = window;
  window = nullptr;
  return address;
}

inline void log_allocation(void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(guard);
  recorded.insert(address);
  events.push_back({0, reinterpret_cast<int64_t>(address), static_cast<int64_t>(bytes)});
}

inline void log_free(void* address) {
  if (!recording.load(std::memory_order_relaxed)) return;
  std::lock_guard<std::mutex> lock(guard);
  if (recorded.erase(address)) {
    events.push_back({mode == Mode::Record ? 1 : 2, reinterpret_cast<int64_t>(address), 0});
  }
}

// Returns the plan's address for this allocation of the replaying thread; null if the plan has a different one or none.
inline void* planned_address(size_t bytes) {
  if (next_slot < end_slot && slots[next_slot].bytes == static_cast<int64_t>(bytes)) {
    void* address = reinterpret_cast<void*>(slots[next_slot++].address);
    served++;
    std::lock_guard<std::mutex> lock(guard);
    lent.insert(address);
    events.push_back({0, reinterpret_cast<int64_t>(address), static_cast<int64_t>(bytes)});
    return address;
  }
  if (static_cast<int64_t>(bytes) <= SPARE_BYTES && next_spare + SPARE_SLOT <= spare_end) {
    void* address = reinterpret_cast<void*>(next_spare);
    next_spare += SPARE_SLOT;
    std::lock_guard<std::mutex> lock(guard);
    lent.insert(address);
    return address;
  }
  unplanned++;
  unplanned_bytes += static_cast<int64_t>(bytes);
  if (faulty_call < 0) faulty_call = call;
  return nullptr;
}

inline void log_unplanned(void* address, size_t bytes) {
  std::lock_guard<std::mutex> lock(guard);
  events.push_back({3, reinterpret_cast<int64_t>(address), static_cast<int64_t>(bytes)});
}

// Returns true if an address was lent, and forgets it. Addresses are stored one by one: a range would outlive its pool.
inline bool give_back(void* address) {
  std::lock_guard<std::mutex> lock(guard);
  return lent.erase(address) != 0;
}

inline void free_lent(void* address) { give_back(address); }  // the bytes stay the pool's

inline void end_call() {
  if (next_slot < end_slot) {
    unused += end_slot - next_slot;
    if (faulty_call < 0) faulty_call = call;
  }
}

}  // namespace plimsoll

extern "C" {

// Number of allocations that found no memory since the last call of this function.
int64_t plimsoll_failures() { return plimsoll::failures.exchange(0); }

void plimsoll_record(int on) {
  using namespace plimsoll;
  std::lock_guard<std::mutex> lock(guard);
  if (on) {
    events.clear();
    recorded.clear();
  }
  mode = on ? Mode::Record : Mode::Pass;
  recording = on != 0;
}

int64_t plimsoll_events() {
  std::lock_guard<std::mutex> lock(plimsoll::guard);
  return static_cast<int64_t>(plimsoll::events.size());
}

void plimsoll_read_events(int64_t from, int64_t to, int64_t* out) {
  using namespace plimsoll;
  std::lock_guard<std::mutex> lock(guard);
  std::memcpy(out, events.data() + from, static_cast<size_t>(to - from) * sizeof(Event));
}

void plimsoll_begin(const int64_t* all_slots, const int64_t* first_of_call) {
  using namespace plimsoll;
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

// Assigns further allocations of this thread to a call.
void plimsoll_call(int64_t number) {
  using namespace plimsoll;
  end_call();
  call = number;
  next_spare = spare;
  next_slot = first[number];
  end_slot = first[number + 1];
  {
    std::lock_guard<std::mutex> lock(guard);
    events.push_back({4, number, 0});
  }
  mode = Mode::Replay;
}

// Provides these bytes for single numbers that no plan foresees, in a step that is captured as a graph.
void plimsoll_spare(int64_t address, int64_t bytes) {
  using namespace plimsoll;
  spare = next_spare = address;
  spare_end = address + bytes;
}

// Assigns further allocations of this thread to no call.
void plimsoll_pause() { plimsoll::mode = plimsoll::Mode::Pass; }

// Ends the call, and pauses. Returns the first call so far whose allocations differ from the plan; -1: none.
int64_t plimsoll_settle() {
  using namespace plimsoll;
  end_call();
  next_slot = end_slot;
  mode = Mode::Pass;
  return faulty_call;
}

void plimsoll_end(int64_t* out) {
  using namespace plimsoll;
  end_call();
  mode = Mode::Pass;
  next_slot = end_slot = 0;
  spare = spare_end = next_spare = 0;
  const int64_t counts[5] = {served, unplanned, unplanned_bytes, unused, faulty_call};
  std::memcpy(out, counts, sizeof counts);
}

// Makes a pool of this many bytes, which is not lent until it is opened; null if there is no memory.
plimsoll::Pool* plimsoll_pool(int64_t bytes, int64_t device) {
  using namespace plimsoll;
  Pool* pool = new Pool{nullptr, static_cast<size_t>(bytes), device, -1, true, false};
  pool->address = take_memory(*pool);
  if (pool->address == nullptr) {
    delete pool;
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(pools_guard);
  pools.push_back(pool);
  return pool;
}

int64_t plimsoll_pool_address(const plimsoll::Pool* pool) { return reinterpret_cast<int64_t>(pool->address); }

int plimsoll_pool_is_there(const plimsoll::Pool* pool) {
  std::lock_guard<std::mutex> lock(plimsoll::pools_guard);
  return pool->is_there;
}

// Opens it to other code, since no step runs in it.
void plimsoll_pool_open(plimsoll::Pool* pool, int64_t budget) {
  using namespace plimsoll;
  std::lock_guard<std::mutex> lock(pools_guard);
  pool->budget = budget;
  if (!pool->is_open && pool->is_there) open_pools++;
  pool->is_open = true;
}

// Gives it back to PyTorch's allocator now if it is open; returns 1 if it is lent then.
int plimsoll_pool_lend(plimsoll::Pool* pool) {
  using namespace plimsoll;
  std::lock_guard<std::mutex> lock(pools_guard);
  if (pool->is_open && pool->is_there) {
    give_memory(pool->address);
    pool->is_there = false;
    open_pools--;
  }
  return !pool->is_there;
}

// Takes it back for a step. 0: it was not lent; 1: it was lent, and is at the same address again; 2: it was lent, and is at a
// different address; -1: it was lent, and there is no memory for it.
int plimsoll_pool_take(plimsoll::Pool* pool) {
  using namespace plimsoll;
  {
    std::lock_guard<std::mutex> lock(pools_guard);
    if (pool->is_open && pool->is_there) open_pools--;
    pool->is_open = false;
    if (pool->is_there) return 0;
  }
  void* address = take_memory(*pool);  // this may lend other pools
  if (address == nullptr) return -1;
  std::lock_guard<std::mutex> lock(pools_guard);
  const bool is_same = address == pool->address;
  pool->address = address;
  pool->is_there = true;
  return is_same ? 1 : 2;
}

void plimsoll_pool_free(plimsoll::Pool* pool) {
  using namespace plimsoll;
  std::lock_guard<std::mutex> lock(pools_guard);
  if (pool->is_open && pool->is_there) open_pools--;
  for (size_t n = 0; n < pools.size(); n++) {
    if (pools[n] == pool) pools.erase(pools.begin() + static_cast<int64_t>(n--));
  }
  if (pool->is_there) give_memory(pool->address);
  delete pool;
}

// Places the next tensor that this thread makes at this address; it owns nothing.
void plimsoll_window(int64_t address) { plimsoll::window = reinterpret_cast<void*>(address); }

}  // extern "C"
