"""Where data begins and ends: rows, columns, tiles, padding, the ends of unaligned rows, indices of 64 bits."""

from __future__ import annotations

from mutations import Mutation as M

CAST, ROWS, PASSES, SEGMENT, TILE = "cast.cuh", "rows.cuh", "passes.cuh", "segment.cuh", "tile.cuh"
GRID = "grid.h"
TRANSPOSE, DEQUANTIZE, MULTI = "transpose.cu", "dequantize.cu", "multi_quantize.cu"

ROWS_AND_COLUMNS = [
    M("row bound", "Extent: one row more", ROWS, "rows_left = rows - row,", "rows_left = rows - row + 1,"),
    M("row bound", "Extent: none", ROWS, "return n < 0 ? 0 : n < width", "return n < 0 ? width : n < width"),
    M("column bound", "Extent: one column more", ROWS, "columns_left = columns - column;", "columns_left = columns - column + 1;"),
    M("column bound", "Extent: one column less", ROWS, "columns_left = columns - column;", "columns_left = columns - column - 1;"),
    M("column bound", "Extent: the short last row", ROWS, "elements == kUnbounded ? width :", "true ? width :"),
    M("column bound", "Extent: one element less", ROWS, "int(elements - (rows - 1) * kSegment)",
      "int(elements - (rows - 1) * kSegment - 1)"),
    M("row bound", "the last tile is left out", CAST, "i < args.tiles;", "i + 1 < args.tiles;"),
    M("row bound", "every other round of tiles", CAST, "i += gridDim.x", "i += 2 * gridDim.x"),
    M("row bound", "reverse, segments: off by one", CAST, "args.tiles - 1 - i", "args.tiles - i"),
    M("row bound", "reverse, tiles: off by one", CAST, "gridDim.x - 1 - blockIdx.x", "gridDim.x - blockIdx.x"),
    M("row bound", "rows of segments rounded down", PASSES, "ceil_div(rows.extent.rows, kRowTile)", "uint32_t(rows.extent.rows / kRowTile)"),
    M("row bound", "row tiles rounded down", PASSES, "ceil_div(x.rows, kWarpRows * warps)", "uint32_t(x.rows / (kWarpRows * warps))"),
    M("column bound", "column tiles rounded down", PASSES, "1 : ceil_div(x.cols, kSegment);", "1 : uint32_t((x.cols + 1) / kSegment);"),
    M("row bound", "warps have one row in common", CAST, "tile_row + warp * kWarpRows", "tile_row + warp * (kWarpRows - 1)"),
    M("row bound", "row tiles of many matrices rounded down", MULTI, "ceil_div(rows, kTileRows)", "rows / kTileRows"),
    M("row bound", "transpose: one row more", TRANSPOSE, "first + r < args.rows", "first + r <= args.rows"),
    M("row bound", "transpose: one row less", TRANSPOSE, "first + r < args.rows", "first + r + 1 < args.rows"),
    M("column bound", "transpose: one column more", TRANSPOSE, "args.columns - column < kSegment ? int(args.columns - column)",
      "args.columns - column < kSegment ? 1 + int(args.columns - column)"),
    M("row bound", "transpose: row tiles rounded down", TRANSPOSE, "ceil_div(q.rows, kWarpRows * warps)", "(q.rows / (kWarpRows * warps))"),
    M("row bound", "column sums: one row less", "sums.cu", "group < last;", "group < last - 1;"),
    M("row bound", "column sums: slabs rounded down", "sums.cu", "slab = ceil_div(groups, kWarps)", "slab = groups / kWarps"),
    M("row bound", "column sums: the last slab has all its rows", "sums.cu", "first + slab < groups ? first + slab : groups", "first + slab",
      survives="what lies behind the last row counts as zero"),
    M("column bound", "column sums: blocks rounded down", "sums.cu", "ceil_div(columns, 32)", "columns / 32 + (columns < 32)"),
    M("column bound", "column sums of a tile: the block's threads, once", CAST, "c < kSegment; c += blockDim.x", "c < blockDim.x; c += blockDim.x"),
    M("row bound", "dequantize: one element less", DEQUANTIZE, "i < elements;", "i + 1 < elements;"),
    M("row bound", "dequantize: the grid's first round only", DEQUANTIZE, "base += kTurn * step", "base = chunks"),
    M("row bound", "dequantize: blocks rounded down", DEQUANTIZE, "ceil_div(args.rows * args.columns, elements ? 32 * kWarps : kBlockCodes);",
      "1 + args.rows * args.columns / (elements ? 32 * kWarps : 2 * kBlockCodes);",
      survives="blocks loop until all is done: one block less does the same work"),
]  # fmt: skip

PADDING = [
    M("padding", "codes of rows that are not there", CAST, "if (valid == 0) own = make_uint2(0, 0);", ""),
    M("padding", "q_t's rows are not padded", PASSES, "{{args.q_t}, round_up(x.rows, kPadding)}", "{{args.q_t}, x.rows}"),
    M("padding", "of many matrices: not padded", MULTI, "{job.q_t, round_up(job.rows, kPadding)}", "{job.q_t, job.rows}"),
    M("padding", "transpose: not padded", TRANSPOSE, "{{args.q_t}, round_up(q.rows, kPadding)}", "{{args.q_t}, q.rows}"),
    M("padding", "the last 16 rows are not written", TILE, "r < out.stride);", "r + 16 < out.stride);"),
    M("padding", "zeros after the columns are not made", SEGMENT, "return first_bytes(shifted(chunk, i == kGroup - 1 ? next : neighbour, shift), valid - 16 * i);",
      "return shifted(chunk, i == kGroup - 1 ? next : neighbour, shift);"),
    M("padding", "a byte more after the columns", SEGMENT, "shift), valid - 16 * i);", "shift), valid - 16 * i + 4);"),
    M("padding", "a byte less after the columns", "convert.cuh", "const int left = count - 4 * i;", "const int left = count - 4 * i - 1;"),
]  # fmt: skip

UNALIGNED = [
    M("unaligned", "shift from 8 bytes", SEGMENT, "(start.address) & 15);", "(start.address) & 7);"),
    M("unaligned", "shift by 8 goes by 4", "convert.cuh", "shift & 8 ? w[i + 2]", "shift & 8 ? w[i + 1]"),
    M("unaligned", "shift by 4 is left out", "convert.cuh", "w[i] = shift & 4 ? w[i + 1] : w[i];", "w[i] = w[i];"),
    M("unaligned", "shift of odd bytes", "convert.cuh", "0x1111u * (shift & 3)", "0x1111u * (shift & 2)",
      units=("transpose",)),  # elements of one byte
    M("unaligned", "the last lane's next chunk", SEGMENT, "i == kGroup - 1 && shift != 0 &&", "false &&"),
    M("unaligned", "no chunk before the first", SEGMENT, "16 * i - shift;", "16 * i;"),
    M("unaligned", "chunk before the matrix is read", SEGMENT, "at.address >= x.data.address && at", "at"),
    M("unaligned", "chunk behind the matrix is read", SEGMENT, " && at.address + 16 <= x.end.address;", ";"),
    M("unaligned", "chunks at the ends are left out", SEGMENT, "const bool edge = wanted && !inside;", "const bool edge = false;"),
    M("unaligned", "element before the matrix is read", SEGMENT, "element.address >= x.data.address && ", ""),
    M("unaligned", "element behind the matrix is read", SEGMENT, " && element.address < x.end.address;", ";"),
    M("unaligned", "the matrix ends with its last row's stride", PASSES, "(m.rows - 1) * m.stride + m.cols)", "m.rows * m.stride)"),
    M("unaligned", "transpose: the matrix ends with a stride", TRANSPOSE, "(q.rows - 1) * q.stride + q.cols}", "q.rows * q.stride}"),
    M("unaligned", "the head is not written", SEGMENT, "lane < 8 ? byte < head && byte < valid :", "lane < 8 ? false :"),
    M("unaligned", "the head is longer than the row", SEGMENT, "byte < head && byte < valid :", "byte < head :"),
    M("unaligned", "the tail is not written", SEGMENT, ": lane < 16 && byte < valid;", ": false;"),
    M("unaligned", "the tail begins a unit late", SEGMENT, "head + 8 * units + lane - 8;", "head + 8 * units + lane;"),
    M("unaligned", "units in rows shorter than the head", SEGMENT, "valid > head ? (valid - head) / 8 : 0;", "(valid - head) / 8;",
      survives="the division rounds to zero: of a negative difference above -8 it is 0, too"),
    M("unaligned", "units are shifted by the head's complement", SEGMENT, "joined(codes) >> (8 * head)", "joined(codes) >> (64 - 8 * head)"),
    M("unaligned", "whole units are joined with the next one", SEGMENT, "head == 0 ? joined(codes) : ", ""),
    M("unaligned", "8 bytes are enough", GRID, "(data) % 16 == 0", "(data) % 8 == 0"),
    M("unaligned", "the stride is not looked at", GRID, "row_bytes % 16 == 0", "true"),
    M("unaligned", "contiguous: the number of elements", PASSES, "operands.at_whole_chunks() && elements % 8 == 0", "operands.at_whole_chunks()"),
    M("unaligned", "segments: the number of columns", PASSES, "return {rows, operands.aligned() && x.cols % 8 == 0}", "return {rows, operands.aligned()}"),
    M("unaligned", "tiles: the number of columns", PASSES, "operands.aligned() && x.cols % 8 == 0;", "operands.aligned();"),
    M("unaligned", "an operand's address", PASSES, "all(is_aligned<typename Source::Element>)", "is_aligned<typename Source::Element>(*matrix[0])", units=("pass_gradient",)),
    M("unaligned", "an operand's layout", PASSES, "all(is_contiguous)", "is_contiguous(*matrix[0])", units=("pass_gradient",)),
    M("unaligned", "many matrices: the number of columns", MULTI, "is_aligned<T>(x) && x.cols % 8 == 0", "is_aligned<T>(x)"),
    M("unaligned", "many matrices: addresses", MULTI, "is_aligned<T>(x) && x.cols % 8 == 0", "x.cols % 8 == 0"),
    M("unaligned", "transpose: the number of columns", TRANSPOSE, "&& q.cols % 16 == 0;", ";"),
    M("unaligned", "transpose: the stride", TRANSPOSE, "in_whole_chunks(q.data, q.rows, q.stride)", "at_whole_chunk(q.data)"),
    M("unaligned", "transpose: the address", TRANSPOSE, "in_whole_chunks(q.data,", "in_whole_chunks(nullptr,"),
    M("unaligned", "dequantize: the number of columns", DEQUANTIZE, "args.columns % kLaneCodes == 0", "true"),
    M("unaligned", "dequantize: the stride", DEQUANTIZE, "args.rows, args.q.stride)", "1, 0)"),
    M("unaligned", "dequantize: the address", DEQUANTIZE, "in_whole_chunks(args.q.data.address,", "in_whole_chunks(nullptr,"),
]  # fmt: skip

INDICES = [
    M("32-bit index", "offset_of", SEGMENT, "{ return row * stride + column; }", "{ return int32_t(uint32_t(row) * uint32_t(stride) + uint32_t(column)); }",
      units=("pass_plain", "multi_quantize", "transpose", "dequantize")),
    M("32-bit index", "offset_of: the product", SEGMENT, "{ return row * stride + column; }", "{ return uint32_t(row) * uint32_t(stride) + column; }"),
    M("32-bit index", "the end of the matrix", PASSES, "(m.rows - 1) * m.stride + m.cols)", "uint32_t(m.rows - 1) * uint32_t(m.stride) + m.cols)"),
    M("32-bit index", "transpose: the end of the matrix", TRANSPOSE, "(q.rows - 1) * q.stride + q.cols}", "uint32_t(q.rows - 1) * uint32_t(q.stride) + q.cols}"),
]  # fmt: skip
