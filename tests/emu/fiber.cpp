#include "emu/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emu {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr size_t kStackBytes = 512 << 10;
#else
constexpr size_t kStackBytes = 128 << 10;  // kernel arguments alone may take 32 KB
#endif
constexpr size_t kGuardBytes = 64 << 10;  // a multiple of every page size

void* allocate_stack() {
  void* memory = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<char*>(memory) + kGuardBytes;
}

}  // namespace

#if defined(__x86_64__)

// Pushes what the ABI lets a callee keep, and takes it from the other stack. (The control words are not switched: all
// fibers share them.)
extern "C" void transcast_emu_switch(void** from, void* to);
asm(R"(
.text
.hidden transcast_emu_switch
.globl transcast_emu_switch
.type transcast_emu_switch, @function
transcast_emu_switch:
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret
.size transcast_emu_switch, . - transcast_emu_switch
)");

static void make_context(Fiber& fiber, void (*entry)()) {
  constexpr int kSaved = 6;
  void** stack = static_cast<void**>(fiber.top);
  *--stack = nullptr;  // the return address that entry never uses; below it the stack is aligned as after a call
  *--stack = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSaved; ++i) *--stack = nullptr;
  fiber.stack_pointer = stack;
}

static void switch_context(Fiber& from, Fiber& to) { transcast_emu_switch(&from.stack_pointer, to.stack_pointer); }

#else

}  // namespace emu
#include <ucontext.h>
namespace emu {

static ucontext_t* context_of(Fiber& fiber) {
  if (!fiber.stack_pointer) fiber.stack_pointer = new ucontext_t;  // lives as long as the fiber: to the end
  return static_cast<ucontext_t*>(fiber.stack_pointer);
}

static void make_context(Fiber& fiber, void (*entry)()) {
  ucontext_t* context = context_of(fiber);
  getcontext(context);
  context->uc_stack = {};
  context->uc_stack.ss_sp = fiber.memory;
  context->uc_stack.ss_size = size_t(static_cast<char*>(fiber.top) - static_cast<char*>(fiber.memory));
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

static void switch_context(Fiber& from, Fiber& to) { swapcontext(context_of(from), context_of(to)); }

#endif

#if defined(__SANITIZE_ADDRESS__)

// The fiber that is being left, until its successor has told the sanitizer where it came from.
static Fiber* leaving;

static void arrived(void* sanitizer_stack) {
  const void* bottom;
  size_t size;
  __sanitizer_finish_switch_fiber(sanitizer_stack, &bottom, &size);
  if (leaving->memory) return;
  leaving->memory = const_cast<void*>(bottom);
  leaving->top = static_cast<char*>(leaving->memory) + size;
}

void entered_fiber() { arrived(nullptr); }

void switch_fiber(Fiber& from, Fiber& to) {
  leaving = &from;
  __sanitizer_start_switch_fiber(&from.sanitizer_stack, to.memory,
                                 size_t(static_cast<char*>(to.top) - static_cast<char*>(to.memory)));
  switch_context(from, to);
  arrived(from.sanitizer_stack);
}

#else

void entered_fiber() {}

void switch_fiber(Fiber& from, Fiber& to) { switch_context(from, to); }

#endif

void prepare(Fiber& fiber, size_t index, void (*entry)()) {
  constexpr size_t kLine = 64, kColours = 16, kStep = 17 * kLine;  // 16 * 17 lines: all sets of a first-level cache
  if (!fiber.memory) {
    fiber.memory = allocate_stack();
    fiber.top = static_cast<char*>(fiber.memory) + kStackBytes - index % kColours * kStep;
  }
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(fiber.memory, kStackBytes);  // what an abandoned run has left
#endif
  make_context(fiber, entry);
}

}  // namespace emu
