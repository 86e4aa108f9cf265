#include "emu/schedule.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

namespace emu {
namespace {

Schedule schedule = Schedule::forward;
std::mt19937 random_bits;
std::vector<uint32_t> orders[3];

}  // namespace

Schedule schedule_of(const std::string& name) {
  if (name == "forward") return Schedule::forward;
  if (name == "reverse") return Schedule::reverse;
  if (name == "random") return Schedule::random;
  throw std::invalid_argument("schedule must be forward, reverse or random, got " + name);
}

void set_schedule(Schedule wanted, uint64_t seed) {
  schedule = wanted;
  random_bits.seed(uint32_t(seed));
  for (auto& known : orders) known.clear();
}

const std::vector<uint32_t>& order(Who who, uint32_t n) {
  std::vector<uint32_t>& numbers = orders[int(who)];
  if (numbers.size() != n) {
    numbers.resize(n);
    std::iota(numbers.begin(), numbers.end(), 0u);
    if (schedule == Schedule::reverse) std::reverse(numbers.begin(), numbers.end());
  }
  if (schedule == Schedule::random) std::shuffle(numbers.begin(), numbers.end(), random_bits);
  return numbers;
}

bool greedy() { return schedule != Schedule::random || random_bits() % 2 == 0; }

}  // namespace emu
