"""How data moves: what goes where, through which bank, in which sectors."""

from __future__ import annotations

from dataclasses import replace

from mutations import Mutation as M

CONVERT, TILE, SEGMENT, CAST, PASSES = "convert.cuh", "tile.cuh", "segment.cuh", "cast.cuh", "passes.cuh"
SWIZZLE = "int(uint32_t(lane * warps) / uint32_t(kMaxWarps)) & (warps - 1)"

PLACES = [
    M("swapped q and q_t", "tiles", PASSES, "tile.q = {args.q};\n  tile.q_stride = args.out_cols();\n  tile.format = args.format;\n  tile.transposed = {{args.q_t}",
      "tile.q = {args.q_t};\n  tile.q_stride = args.out_cols();\n  tile.format = args.format;\n  tile.transposed = {{args.q}"),
    M("swapped q and q_t", "many matrices", "multi_quantize.cu", "x.cols, {args.q}, {args.q_t},", "x.cols, {args.q_t}, {args.q},"),
    M("wrong stride", "q has its operand's", PASSES, "tile.q_stride = args.out_cols();", "tile.q_stride = args.x.stride;"),
    M("wrong stride", "rows of codes", PASSES, "rows.q_stride = x.cols;", "rows.q_stride = x.stride;"),
    M("transpose of 4 x 4", "two columns swapped", CONVERT, "columns[1] = __byte_perm(ab_low, cd_low, 0x7632);",
      "columns[1] = __byte_perm(ab_high, cd_high, 0x5410);"),
    M("transpose of 4 x 4", "two rows swapped", CONVERT, "cd_low = __byte_perm(rows[2], rows[3], 0x5140)", "cd_low = __byte_perm(rows[3], rows[2], 0x5140)"),
    M("runs", "upper and lower rows swapped", CAST, "make_uint2(upper_columns[k], lower_columns[k])", "make_uint2(lower_columns[k], upper_columns[k])"),
    M("runs", "halves swapped", CAST, "Runs<8>::at(lane, 4 * half + k, warp, warps)", "Runs<8>::at(lane, 4 * (1 - half) + k, warp, warps)"),
    M("runs", "transpose: halves swapped", "transpose.cu", "half ? run.y : run.x", "half ? run.x : run.y"),
    M("runs", "transpose: another word", "transpose.cu", "4 * word + k, warp", "4 * (3 - word) + k, warp"),
    M("runs", "columns of one lane beside each other", TILE, "(column_in_group * kLanes + lane) * warps", "(lane * kGroup + column_in_group) * warps"),
    M("swizzle", "of the stores only", TILE, "(warp ^ swizzle(lane, warps))", "warp"),
    M("swizzle", "of the loads only", TILE, "2 * (pair ^ (swizzle >> 1))", "2 * pair"),
    M("swizzle", "order within a pair", TILE, "swizzle & 1 ? make_uint4(both.z", "false ? make_uint4(both.z"),
    M("octets", "FP32: neighbours are not asked", SEGMENT, "odd ? make_uint2(received, codes[1]) : make_uint2(codes[0], received)", "make_uint2(codes[0], codes[1])"),
    M("octets", "FP32: the wrong half", SEGMENT, "odd ? codes[0] : codes[1], 1)", "odd ? codes[1] : codes[0], 1)"),
    M("octets", "FP32: another octet", SEGMENT, "(lane & 1) * 16 + (lane >> 1)", "(lane & 15) * 2 + (lane >> 4)"),
    M("chunks", "dequantize: another lane's", "dequantize.cu", "(chunk - member + i) * kGroup + member", "chunk * kGroup + i"),
]  # fmt: skip

COSTS = [
    M("no swizzle", "runs", TILE, SWIZZLE, "0 * lane * warps"),
    M("no swizzle", "transpose", TILE, SWIZZLE, "0 * lane * warps", units=("transpose",)),
    M("wrong swizzle", "runs", TILE, SWIZZLE, "lane / 4 & (warps - 1)"),
    M("no swizzle", "column sums", CAST, "Lanes<T>::kHalves ? 40 : 36;", "32;"),
    M("uncoalesced", "stores of q_t", TILE, "const int index = pass * blockDim.x + threadIdx.x;", "const int index = threadIdx.x * kPasses + pass;"),
    M("uncoalesced", "FP32 loads use half of each sector", SEGMENT, "kHalves = Chunks<T>::kCount == 2;", "kHalves = false;"),
    M("read twice", "segments are unaligned", PASSES, "rows_kernel<Source, Aligned, Fp8> :", "rows_kernel<Source, Unaligned, Fp8> :"),
    M("read twice", "tiles are unaligned", PASSES, "tiles_kernel<Source, Aligned, Fp8, kSums> :", "tiles_kernel<Source, Unaligned, Fp8, kSums> :"),
    M("read twice", "the chunk behind an aligned row", SEGMENT, "i == kGroup - 1 && shift != 0 &&", "i == kGroup - 1 &&"),
    M("narrow", "dequantize goes element by element", "dequantize.cu", "bool elements = !whole && args.rows > 1", "bool elements = true"),
    M("narrow", "few rows per tile", TILE,
      "while (warps > kSumWarps && ceil_div(rows, kWarpRows * warps) * column_tiles < multiprocessors)",
      "while (warps > kSumWarps)"),
    M("launches", "one per matrix", "multi_quantize.cu", "constexpr int kJobs = 400;", "constexpr int kJobs = 1;"),
]  # fmt: skip
# The bytes are right, what it costs is not.
TABLE = "tests/test_traffic.py"
ONLY = {"transpose": f"{TABLE}::test_counted_anew[transpose]", "dequantize.cu": f"{TABLE}::test_counted_anew[dequantize]"}
COSTS = [replace(m, tests=(ONLY.get("".join(m.units), ONLY.get(m.file, TABLE)),)) for m in COSTS]
