"""What is computed: rounding, scales, the amax, activations, sums."""

from __future__ import annotations

from mutations import Mutation as M

CONVERT, CAST, SOURCE, QUANTIZE, FINISH = "convert.cuh", "cast.cuh", "source.cuh", "quantize.cu", "finish.cuh"
FP8, ACT = "../core/fp8.h", "../core/act.h"
ACTIVATIONS, GRADIENTS = ("pass_activation",), ("pass_gradient",)
PAIR = "make_float2(first, second)"
SCALED = "{ float scaled[8]; for (int e = 0; e < 8; ++e) scaled[e] = v[part][e] * scale; amax = amax_of(scaled, amax); }"

ROUNDING = [
    M("truncation", "e4m3 toward zero", CONVERT, PAIR,
      "make_float2(float_of(bits_of(first) & 0xfff00000u), float_of(bits_of(second) & 0xfff00000u))"),
    M("double rounding", "through BF16", CONVERT, PAIR,
      "make_float2(__bfloat162float(__float2bfloat16_rn(first)), __bfloat162float(__float2bfloat16_rn(second)))"),
    M("double rounding", "through FP16", CONVERT, PAIR,
      "make_float2(__half2float(__float2half_rn(first)), __half2float(__float2half_rn(second)))"),
    M("overflow", "not saturated", CONVERT, "__NV_SATFINITE", "__NV_NOSAT"),
    M("format", "e4m3 and e5m2 swapped", CONVERT, "? __NV_E4M3 : __NV_E5M2", "? __NV_E5M2 : __NV_E4M3"),
    M("codes", "pairs swapped", CONVERT, PAIR, "make_float2(second, first)"),
    M("codes", "halves of a word swapped", CONVERT, "encode2<Fp8>(v[4 * w + 2] * scale, v[4 * w + 3] * scale) << 16",
      "encode2<Fp8>(v[4 * w + 2] * scale, v[4 * w + 3] * scale) << 8"),
    M("scale", "inverse scale instead", CONVERT, "v[4 * w] * scale,", "v[4 * w] / scale,"),
    M("widening", "BF16: the other half's bits stay", CONVERT, "words[w] & 0xffff0000u", "words[w]"),
    M("widening", "FP16: halves swapped", CONVERT, "half_to_float(uint16_t(words[w] >> 16))", "half_to_float(uint16_t(words[w]))"),
    M("truncation", "dequantize: to BF16 toward zero", CONVERT, "__floats2bfloat162_rn(first, second)",
      "__floats2bfloat162_rn(float_of(bits_of(first) & 0xffff0000u), second)", units=("dequantize",)),
    M("codes", "dequantize: pairs swapped", CONVERT, "codes >> (16 * pair)", "codes >> (16 * (1 - pair))", units=("dequantize",)),
    M("double rounding", "dequantize: FP32 through FP16", "dequantize.cu", "words[i] = bits_of(v[i] * scale_inv);",
      "words[i] = bits_of(__half2float(__float2half_rn(v[i] * scale_inv)));"),
    M("double rounding", "dequantize: scale_inv through BF16", "dequantize.cu", "  const float scale_inv = ldg(args.scale_inv, true);\n",
      "  const float scale_inv = __bfloat162float(__float2bfloat16_rn(ldg(args.scale_inv, true)));\n", times=2),
]  # fmt: skip

AMAX = [
    M("amax after scaling", "segments", CAST, "amax = amax_of(v[part], amax);", SCALED, times=2, nth=0),
    M("amax after scaling", "tiles", CAST, "amax = amax_of(v[part], amax);", SCALED, times=2, nth=1),
    M("amax through fmaxf", "in the thread", CONVERT, "amax = larger(amax, bits_of(v[e]) & 0x7fffffffu)",
      "amax = bits_of(fmaxf(float_of(amax), fabsf(v[e])))"),
    M("amax through fmaxf", "everywhere", CONVERT, "{ return a > b ? a : b; }", "{ return bits_of(fmaxf(float_of(a), float_of(b))); }"),
    M("amax", "with its sign", CONVERT, "bits_of(v[e]) & 0x7fffffffu", "bits_of(v[e])"),
    M("amax", "as signed integers", CONVERT, "{ return a > b ? a : b; }", "{ return int32_t(a) > int32_t(b) ? a : b; }",
      survives="the sign bit is cleared before: both orders agree"),
    M("amax", "of seven of eight elements", CONVERT, "e < 8; ++e) amax = larger", "e < 7; ++e) amax = larger"),
    M("amax", "of the first part only", CAST, "amax = amax_of(v[part], amax);", "amax = amax_of(v[0], amax);", times=2, units=GRADIENTS),
    M("amax", "of codes before the matrix ends only", CAST, "amax = amax_of(v[part], amax);",
      "if (valid == kSegment) amax = amax_of(v[part], amax);", times=2, nth=1),
]  # fmt: skip

SCALES = [
    M("current scaling", "margin ignored", FP8, "  scale *= float_of(uint32_t(127 - rule.margin) << 23);\n", ""),
    M("current scaling", "margin the wrong way", FP8, "127 - rule.margin", "127 + rule.margin"),
    M("current scaling", "pow2 ignored", FP8, "rule.pow2 ? bits & kInfBits : bits", "bits"),
    M("current scaling", "pow2 always", FP8, "rule.pow2 ? bits & kInfBits : bits", "bits & kInfBits"),
    M("current scaling", "no lower limit", FP8, "  if (bits < low) bits = low;\n", ""),
    M("current scaling", "no upper limit", FP8, "  if (bits > high) bits = high;\n", ""),
    M("current scaling", "reciprocal instead of a division", FP8, "format_max / float_of(amax)", "format_max * (1.0f / float_of(amax))"),
    M("current scaling", "zero has no scale of 1", FP8, "if (amax == 0 || amax >= kInfBits)", "if (amax >= kInfBits)"),
    M("current scaling", "NaN and Inf have no scale of 1", FP8, "if (amax == 0 || amax >= kInfBits)", "if (amax == 0)"),
    M("current scaling", "Inf has no scale of 1", FP8, "amax == 0 || amax >= kInfBits", "amax == 0 || amax > kInfBits"),
    M("current scaling", "the rule is not passed on", QUANTIZE, "  finish.rule = rule;\n", ""),
    M("current scaling", "one format's largest value", QUANTIZE, "format_max(args.format)", "format_max(Format::e4m3)"),
    M("current scaling", "many matrices: the rule is not passed on", "multi_quantize.cu", "finish.rule = jobs.rule;", ""),
    M("current scaling", "q_t has no scale_inv", QUANTIZE, "  finish.scale_inv_t = {args.scale_inv_t};\n", ""),
    M("scale_inv", "Inf does not poison it", FP8, "return amax >= kInfBits ? float_of(kNanBits)", "return amax > kInfBits ? float_of(kNanBits)"),
    M("scale_inv", "nothing poisons it", FP8, "return amax >= kInfBits ? float_of(kNanBits) :", "return"),
    M("scale_inv", "NaN of any payload", FP8, "canonical(1.0f / scale)", "(0.0f + 1.0f / scale)"),
    M("scale_inv", "the scale itself", FP8, "canonical(1.0f / scale)", "canonical(scale)"),
    M("scale_inv", "amax with a payload", FINISH, "canonical(float_of(amax))", "float_of(amax)"),
    M("scale_inv", "of a scale made from amax, though one is given", FINISH, "given ? ldg(finish.given_scale, true) :", ""),
]  # fmt: skip

ACTIVATION = [
    M("activation", "dsilu: clamp at 16", ACT, "x = x > 110.0f ? 110.0f : x;", "x = x > 16.0f ? 16.0f : x;", units=GRADIENTS),
    M("activation", "dsilu: no clamp", ACT, "  x = x > 110.0f ? 110.0f : x;\n  x = x < -110.0f ? -110.0f : x;\n", "", units=GRADIENTS),
    M("activation", "dgelu: clamp at 4", ACT, "x = x > 12.0f ? 12.0f : x;", "x = x > 4.0f ? 4.0f : x;", units=GRADIENTS),
    M("activation", "dgelu: no lower clamp", ACT, "  x = x < -12.0f ? -12.0f : x;\n", "", units=GRADIENTS),
    M("activation", "exp: clamp at 80", ACT, "x > 89.0f ? 89.0f", "x > 80.0f ? 80.0f", units=ACTIVATIONS),
    M("activation", "exp: no lower clamp", ACT, "  x = x < -104.0f ? -104.0f : x;\n", "", units=ACTIVATIONS),
    M("activation", "gelu_tanh and silu swapped", SOURCE, "? gelu_tanh(x) : silu(x)", "? silu(x) : gelu_tanh(x)", units=ACTIVATIONS),
    M("activation", "slopes swapped", SOURCE, "? dgelu_tanh(x) : dsilu(x)", "? dsilu(x) : dgelu_tanh(x)", units=GRADIENTS),
    M("activation", "gate and up swapped", "pass_activation.cu", "{{&args.x, &args.up}}", "{{&args.up, &args.x}}"),
    M("activation", "gradient: gate and up swapped", "pass_gradient.cu", "{{&args.x, &args.up, &args.g}}", "{{&args.up, &args.x, &args.g}}"),
    M("activation", "gradient: x and g swapped", "pass_gradient.cu", "{{&args.x, &args.g}}", "{{&args.g, &args.x}}"),
    M("activation", "dgate and dup swapped", SOURCE, "      v[0][e] = (g[e] * dsilu(gate[e])) * up[e];\n      v[1][e] =",
      "      v[1][e] = (g[e] * dsilu(gate[e])) * up[e];\n      v[0][e] =", units=GRADIENTS),
    M("activation", "dgate: another order of products", SOURCE, "(g[e] * dsilu(gate[e])) * up[e]", "g[e] * (dsilu(gate[e]) * up[e])", units=GRADIENTS),
    M("activation", "rounded to BF16 before it is scaled", SOURCE, "v[0][e] = silu(v[0][e]) * up[e];",
      "v[0][e] = float_of(bits_of(silu(v[0][e]) * up[e]) & 0xffff0000u);", units=ACTIVATIONS),
    M("activation", "halves of dgate | dup: q", CAST, "args.q_stride + part * args.extent.columns)", "args.q_stride + (1 - part) * args.extent.columns)", units=GRADIENTS),
    M("activation", "halves of dgate | dup: q_t", CAST, "args.transposed.q_t + part *", "args.transposed.q_t + (1 - part) *", units=GRADIENTS),
    M("activation", "halves of dgate | dup: dbias", CAST, "all_columns + part *", "all_columns + (1 - part) *", units=GRADIENTS),
    M("activation", "dbias of the first half twice", CAST, "sums[part], args.sums", "sums[0], args.sums", units=GRADIENTS),
]  # fmt: skip

SUMS = [
    M("dbias", "of scaled values", CAST, "sums[part][e] += v[part][e];", "sums[part][e] += v[part][e] * scale;"),
    M("dbias", "of magnitudes", CAST, "sums[part][e] += v[part][e];", "sums[part][e] += fabsf(v[part][e]);"),
    M("dbias", "of the last row only", CAST, "sums[part][e] += v[part][e];", "sums[part][e] = v[part][e];"),
    M("dbias", "columns of another lane", CAST, "c / 128 * 4 + c % 4 : c % 8;", "c / 128 * 4 + c % 4 : c / 8 % 8;"),
    M("dbias", "FP32: columns of another lane", CAST, "? c % 128 / 4 : c / 8;", "? c / 8 : c / 8;"),
    M("dbias", "a warp is left out", CAST, "lds(of_warp[w + 3][at])", "0.0f"),
    M("dbias", "one tile's sums are the matrix's", "passes.cuh", "kSums && row_tiles > 1", "kSums && row_tiles > 2"),
    M("dbias", "one row of sums for all tiles", CAST, "row_tile * all_columns", "0 * all_columns"),
]  # fmt: skip
