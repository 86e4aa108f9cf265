"""What threads, warps and blocks have to do together: reductions, atomics, fences, the end of a launch."""

from __future__ import annotations

from mutations import Mutation as M

FINISH, CAST, MULTI, STATE = "finish.cuh", "cast.cuh", "multi_quantize.cu", "state.cu"
SIDE_BY_SIDE = ("tests/test_cuda_launchers.py::test_no_streams_and_no_threads_share_a_slot",)
TICKET = "  if (atomic_inc(finish.ticket_word(), blocks - 1) != blocks - 1) return;  // wraps to 0 for the slot's next use\n"
EXCHANGE = "  write_results(finish, atomic_exchange(finish.amax_word(), 0u));\n"
MAXIMUM = "  atomic_max(finish.amax_word(), amax);\n"

REDUCTIONS = [
    M("shuffle distance", "warp_max begins at 8", FINISH, "int distance = 16;", "int distance = 8;"),
    M("shuffle distance", "warp_max ends at 2", FINISH, "distance > 0; distance /= 2", "distance > 1; distance /= 2"),
    M("shuffle distance", "warp_max skips distances", FINISH, "distance /= 2", "distance /= 4"),
    M("shuffle distance", "own_codes swaps with the wrong lane", "segment.cuh", "codes[1], 1);", "codes[1], 2);"),
    M("shuffle distance", "window takes the next but one", "segment.cuh", "v.z, 1, width)", "v.z, 2, width)"),
    M("shuffle distance", "store_segment: wrong neighbour", "segment.cuh", "(octet + 1) & 31", "(octet + 2) & 31"),
    M("shuffle distance", "exchange begins at 2", "dequantize.cu", "int distance = 1;", "int distance = 2;"),
    M("shuffle distance", "exchange: halves mixed up", "dequantize.cu", "upper ? words[i] : words[i + distance], distance",
      "upper ? words[i + distance] : words[i], distance"),
    M("reduction identity", "threads begin at 1", CAST, "  uint32_t amax = 0;\n", "  uint32_t amax = 1;\n", times=2),
    M("reduction identity", "warps that are not there count as Inf", FINISH, ": 0u);", ": 0x7f800000u);"),
    M("reduction identity", "words of warps that are not there are read", FINISH, "threadIdx.x < blockDim.x / 32 ?",
      "threadIdx.x < kMaxWarps ?"),
    M("reduction identity", "the last warp's word is left out", FINISH, "threadIdx.x < blockDim.x / 32 ?",
      "threadIdx.x + 1 < blockDim.x / 32 ?"),
    M("reduction identity", "column sums begin at a row's value", CAST, "float sums[Source::kParts][8] = {};",
      "float sums[Source::kParts][8] = {{1}};"),
    M("reduction identity", "slabs begin at what the first warp has", "sums.cu", "  sum = 0;\n", ""),
    M("reduction", "each lane publishes", FINISH, "  if (threadIdx.x % 32 == 0) sts", "  sts"),
    M("reduction", "one thread's maximum is the warp's", FINISH, "  amax = warp_max(amax);\n", ""),
    M("reduction", "the first warp's maximum is the block's", FINISH, "  const uint32_t amax = warp_max(",
      "  const uint32_t amax = ("),
]  # fmt: skip

PLAIN_MAXIMUM = (
    "  { const uint32_t old = ldcg(finish.amax_word()); if (old < amax) stg(finish.amax_word(), amax, true); }\n"
)
PLAIN_TICKET = (
    "  const uint32_t ticket = ldcg(finish.ticket_word());\n"
    "  stg(finish.ticket_word(), ticket >= blocks - 1 ? 0u : ticket + 1, true);\n"
    "  if (ticket != blocks - 1) return;\n"
)
ATOMICS = [
    M("lost atomic", "amax: load, compare, store", FINISH, MAXIMUM, PLAIN_MAXIMUM),
    M("lost atomic", "ticket: load, add, store", FINISH, TICKET, PLAIN_TICKET),
    M("lost atomic", "amax: exchange for maximum", FINISH, "atomic_max(finish", "atomic_exchange(finish"),
    M("lost atomic", "blocks do not add their amax", FINISH, MAXIMUM, ""),
    M("lost atomic", "a plain load of the result", FINISH, "atomic_exchange(finish.amax_word(), 0u)",
      "ldg(Global<const uint32_t>{finish.amax_word().address}, true)"),
    M("missing fence", "before the ticket", FINISH, "  fence();\n", "", times=2, nth=0),
    M("missing fence", "after the ticket", FINISH, "  fence();\n", "", times=2, nth=1),
    M("both fences", "around the ticket", FINISH, "  fence();\n", "", times=2),
]  # fmt: skip

ENDS = [
    M("written before the last block", "by every block", FINISH, TICKET, TICKET.replace("  if (", "  (void)(").replace(" return", "")),
    M("written before the last block", "by the first block", FINISH, "!= blocks - 1) return", "!= 0) return"),
    M("written before the last block", "before the ticket", FINISH, TICKET, EXCHANGE + TICKET),
    M("written before the last block", "a block too few is waited for", CAST, "maxima, gridDim.x);",
      "maxima, gridDim.x - 1);", times=2),
    M("written before the last block", "a block too many is waited for", CAST, "maxima, gridDim.x);",
      "maxima, gridDim.x + 1);", times=2),
    M("written before the last block", "all lanes take tickets", FINISH, "  if (threadIdx.x != 0) return;\n", ""),
    M("slot not reset", "amax stays", FINISH, "atomic_exchange(finish.amax_word(), 0u)", "ldcg(finish.amax_word())"),
    M("slot not reset", "the ticket runs on", FINISH, "blocks - 1) != blocks", "0xffffffffu) != blocks"),
    M("slot not zeroed", "of a captured op", STATE,
      '    check(cudaMemsetAsync(slot, 0, sizeof(Slot), stream_of(context)), "cudaMemsetAsync");\n', ""),
    M("slot not zeroed", "of an eager op", STATE,
      '    check(cudaMemsetAsync(chunk.next, 0, sizeof(Slot), stream_of(context)), "cudaMemsetAsync");\n', ""),
    M("slot not zeroed", "of many matrices", MULTI,
      '  check(cudaMemsetAsync(slots, 0, size_t(bytes), stream_of(context)), "cudaMemsetAsync");\n', ""),
    M("slot shared", "by all ops", STATE, "chunk.next++;", "chunk.next;", tests=SIDE_BY_SIDE),
    M("slot shared", "by the streams of a thread", STATE, "device < other.device : stream < other.stream;",
      "device < other.device : false;", tests=SIDE_BY_SIDE),
    M("slot shared", "by the threads of a stream", STATE, "  thread_local SlotsOfThread", "  static SlotsOfThread",
      tests=SIDE_BY_SIDE),
    M("slot shared", "by all matrices", MULTI, "finish.slot = jobs.slots + index;", "finish.slot = jobs.slots;"),
    M("slot shared", "by the pairs of launches", MULTI, "jobs.slots = {slots + done};", "jobs.slots = {slots};",
      survives="pairs follow each other on one stream: the first one has read its scales and left the slots at zero"),
    M("slot shared", "scale of the first matrix", MULTI, "&(jobs.slots + index).address->scale", "&jobs.slots.address->scale"),
    M("job boundary", "off by one tile", MULTI, "first_tile <= block ?", "first_tile < block ?"),
    M("job boundary", "the last job is never found", MULTI, "high = jobs.count;", "high = jobs.count - 1;"),
    M("job boundary", "waits for all blocks", MULTI, "maxima, uint32_t(tiles_of(job.rows, job.columns)));", "maxima, gridDim.x);"),
    M("job boundary", "an empty matrix has no tile", MULTI, "column_tiles == 0 ? 1 :", "column_tiles == 0 ? 0 :"),
    M("job boundary", "tiles counted from the launch's first", MULTI, "blockIdx.x - job.first_tile", "blockIdx.x"),
    M("order of sums", "slabs in the order of arrival", "sums.cu", "  for (int w = 0; w < kWarps; ++w) sum += lds(smem.slab[w][lane]);",
      "  static int arrivals;\n  const int begin = arrivals++;\n"
      "  for (int w = 0; w < kWarps; ++w) sum += lds(smem.slab[(w + begin) % kWarps][lane]);"),
    M("order of sums", "warps in the order of arrival", CAST,
      "    float sum = four(0);\n    if (warps >= 8) sum += four(4);\n    if (warps == 16) sum += four(8) + four(12);\n",
      "    static int arrivals;\n    const int begin = 4 * arrivals++;\n    float sum = 0;\n"
      "    for (int w = 0; w < warps; w += 4) sum += four((w + begin) % warps);\n"),
]  # fmt: skip
