// Stacks that take turns on one thread of the CPU.
#pragma once

#include <cstddef>

namespace emu {

struct Fiber {
  void* stack_pointer;  // while it does not run
  void* memory;         // its stack, lowest address; null: the stack of whoever asked first
  void* top;
  void* sanitizer_stack;
};

// Gives the fiber a stack, once, and makes it start afresh in `entry`, which must never return. `index` spreads the
// stacks over the sets of the caches.
void prepare(Fiber&, size_t index, void (*entry)());

// Runs `to` until something switches back to `from`.
void switch_fiber(Fiber& from, Fiber& to);

// To be called first in `entry`: tells the sanitizer, where there is one, whose stack this is.
void entered_fiber();

}  // namespace emu
