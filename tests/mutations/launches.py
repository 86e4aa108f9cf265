"""How kernels are launched: streams, graphs, block sizes, shared memory, passes that come back, errors."""

from __future__ import annotations

from mutations import Mutation as M

STATE, PASSES, CAST, ERROR, CAPTURE = "state.cu", "passes.cuh", "cast.cuh", "error.h", "capture.h"
MACHINE = ("tests/test_emu.py",)
KERNELS, TRAFFIC = "tests/test_cuda_kernels.py", "tests/test_traffic.py"
CAPTURING = "if (status != cudaStreamCaptureStatusNone)"

STREAMS = [
    M("stream", "the default one", "state.h",
      "static_cast<cudaStream_t>(context.stream)", "cudaStream_t(nullptr)"),
    M("captured op", "has an eager op's slot", STATE, CAPTURING, CAPTURING.replace("(", "(false && "),
      tests=(f"{KERNELS}::test_bytes_while_a_graph_is_captured",)),
    M("capture elsewhere", "calls as if this thread were part of it", CAPTURE,
      "cudaStreamCaptureModeRelaxed", "cudaStreamCaptureModeGlobal", units=("state",), tests=MACHINE),
    M("capture elsewhere", "code is loaded as if this thread were part of it", STATE,
      "  const OutsideOfCaptures now;  // the first call that loads code\n", "", tests=MACHINE),
    M("capture elsewhere", "cudaMalloc as if this thread were part of it", STATE,
      "    const OutsideOfCaptures now;\n    void* slots", "    void* slots", tests=MACHINE),
    M("capture elsewhere", "the zeroes are waited for", STATE, "    return chunk.next++;\n",
      "    check(cudaStreamSynchronize(stream_of(context)), \"wait\");\n    return chunk.next++;\n",
      tests=MACHINE),
    M("capture elsewhere", "the thread stays relaxed", CAPTURE, "(void)cudaThreadExchangeStreamCaptureMode(&mode_);", "",
      units=("state",), tests=MACHINE),
]  # fmt: skip

ROWS, TILES = "dim3(32 * kRowWarps), sizeof(Maxima)", "sizeof(TileSmem), stream_of(context), tile,"
SIZES = [
    M("block size", "more warps than the kernel is compiled for", PASSES,
      "multiprocessors, kTileWarps<Source>)", "multiprocessors, kMaxWarps)", units=("pass_gradient",),
      tests=(f"{TRAFFIC}::test_counted_anew[dact_quantize_transpose_dbias swiglu]",)),
    M("block size", "segments: half the warps", PASSES, ROWS, ROWS.replace("32", "16")),
    M("block size", "segments: twice the warps", PASSES, ROWS, ROWS.replace("32", "64")),
    M("shared memory", "more than is there without asking", PASSES, TILES, "2 * " + TILES),
    M("shared memory", "more than the struct", PASSES, TILES, "64 + " + TILES,
      tests=(f"{TRAFFIC}::test_counted_anew[cast_transpose]",)),
    M("shared memory", "less than the struct", PASSES, ROWS, ROWS.replace("sizeof(Maxima)", "0")),
]  # fmt: skip

AGAIN = [
    M("second read", f"{kernel}: {name}", PASSES, "again && fits_l2", f"{changed} fits_l2", times=2, nth=nth,
      tests=(f"{TRAFFIC}::test_what_fits_l2_is_read_again_from_its_end",))
    for nth, kernel in enumerate(("segments", "tiles"))
    for name, changed in (("never from the end", "false &&"), ("always from the end", "again ||"))
]  # fmt: skip

CLEAR, NO_IMAGE = "  (void)cudaGetLastError();", "status == cudaErrorNoKernelImageForDevice ||"
NO_FUNCTION = "|| status == cudaErrorInvalidDeviceFunction"
MALLOC = "cudaMalloc(&slots, kChunkSlots * sizeof(Slot))"
ATTRIBUTES = 'check(status, "cudaFuncGetAttributes");'
ERRORS = [
    M("error", "stays with the runtime", ERROR, CLEAR, "", tests=MACHINE),
    M("error", "of an unsupported device stays with the runtime", STATE, CLEAR, "", tests=MACHINE),
    M("error", "unsupported device: no image", STATE, NO_IMAGE, "", tests=MACHINE),
    M("error", "unsupported device: no function", STATE, NO_FUNCTION, "", tests=MACHINE),
    M("error", "of cudaMalloc is not looked at", STATE, f'check({MALLOC}, "cudaMalloc");', f"(void){MALLOC};",
      tests=MACHINE),
    M("error", "of cudaFuncGetAttributes is not looked at", STATE, ATTRIBUTES, "", tests=MACHINE),
]

# A byte of x that is no element of it; no result depends on it.
GAP = """  {
    const Input& x = args.source.operand[0];
    const int64_t columns = args.extent.columns, gap = (x.stride + columns) / 2 * kElementBytes<T>;
    const bool there = x.stride > columns + 16 && args.extent.rows > 1 && blockIdx.x + threadIdx.x == 0;
    stg(Global<uint8_t>{const_cast<uint8_t*>(x.data.address)} + gap, uint8_t(1), there);
  }
"""
END = "  if (args.finish.slot.address == nullptr) return;\n"
ARGUMENTS = [M("store to an argument", "between the rows of x", CAST, END, GAP + END)]
