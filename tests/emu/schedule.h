// In which order blocks, warps and lanes run. On a GPU any order can happen; a kernel's results must not depend on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace emu {

enum class Schedule { forward, reverse, random };

// Throws std::invalid_argument for other names than "forward", "reverse" and "random".
Schedule schedule_of(const std::string& name);

// For launches from now on. The same seed gives the same orders.
void set_schedule(Schedule, uint64_t seed);

// The numbers below n in the order of the schedule; under `random` another one at each call. The reference holds until
// the next call for the same `who`.
enum class Who { blocks, warps, lanes };
const std::vector<uint32_t>& order(Who who, uint32_t n);

// Whether a warp now runs until it can go no further, or lets every other warp have a turn each time its lanes had one.
bool greedy();

}  // namespace emu
