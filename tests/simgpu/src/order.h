// Which stream used which memory when, and what waits for what.
//
// On a GPU each stream runs by itself: work on two streams is in order only if an event, or the
// host, makes one wait for the other. Here everything runs at once and in order, so a missing wait
// changes no result. Vector clocks find it: each stream counts what it was given, and remembers how
// far it has waited for each other stream. An operation that reads what another stream wrote, where
// its own stream has not waited for that write, is a race.
#pragma once
#include "common.h"

namespace sim {

using StreamKey = int64_t;  // a stream of a device
using Clock = std::unordered_map<StreamKey, int64_t>;

inline thread_local c10::StreamId streams[kDevices] = {0, 0};  // the current ones
inline std::unordered_map<StreamKey, Clock> clocks;
inline Clock host;  // what has ended for certain, because the host waited for it
inline std::vector<std::string> races;

struct Block {  // one piece of a device's memory
  DeviceIndex device;
  size_t size;
  StreamKey home;  // the stream that it was allocated on, and that gets it again
  StreamKey writer = -1;
  int64_t written = 0;
  std::string what = {};  // the operation that wrote it
  std::unordered_map<StreamKey, int64_t> reads = {};  // since then
  std::unordered_set<StreamKey> recorded = {};  // by record_stream
};
inline std::unordered_map<void*, Block> blocks;

inline StreamKey key_of(DeviceIndex device, c10::StreamId stream) { return (int64_t(device) << 40) | stream; }
inline StreamKey key_of(const c10::Stream& stream) { return key_of(stream.device_index(), stream.id()); }

inline void merge(Clock& into, const Clock& other) {
  for (auto& [key, time] : other) into[key] = std::max(into[key], time);
}

inline Clock& clock_of(StreamKey key) {
  auto [found, is_new] = clocks.try_emplace(key);
  if (is_new) found->second = host;
  return found->second;
}

inline void host_waits_for(const Clock& clock) {
  merge(host, clock);
  for (auto& [key, one] : clocks) merge(one, host);
}

inline void add_race(const std::string& what, const std::string& other, StreamKey mine, StreamKey theirs) {
  if (races.size() < 1000)
    races.push_back(what + " on stream " + std::to_string(mine) + " does not wait for " + other +
        " on stream " + std::to_string(theirs));
}

// An operation on the current stream reads or writes memory.
inline void uses(void* pointer, bool writes, const std::string& name) {
  Lock lock(mutex);
  auto found = blocks.find(pointer);
  if (found == blocks.end()) return;
  auto& block = found->second;
  auto key = key_of(block.device, streams[block.device]);
  auto& clock = clock_of(key);
  auto now = ++clock[key];
  if (block.writer >= 0 && clock[block.writer] < block.written) add_race(name, block.what, key, block.writer);
  if (!writes) {
    block.reads[key] = now;
    return;
  }
  for (auto& [reader, time] : block.reads)
    if (clock[reader] < time) add_race(name, "a read", key, reader);
  block.reads.clear();
  block.writer = key;
  block.written = now;
  block.what = name;
}

inline std::unordered_map<StreamKey, std::vector<Block>> freed;  // by the stream that gets them again

// The next allocation of a stream may get what was freed, while another stream still uses it.
inline void check_reuse(StreamKey home) {
  auto& clock = clock_of(home);
  for (auto& block : freed[home]) {
    auto still_used = [&](StreamKey key, int64_t time) { return clock[key] < time && !block.recorded.count(key); };
    if (block.writer >= 0 && still_used(block.writer, block.written))
      add_race("reuse of memory", block.what + " (no record_stream)", home, block.writer);
    for (auto& [reader, time] : block.reads)
      if (still_used(reader, time)) add_race("reuse of memory", "a read (no record_stream)", home, reader);
  }
  freed[home].clear();
}

}  // namespace sim
