"""gemm: within the derived bound of FP64, and to the bit where FP32 sums are exact."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    DTYPES,
    E4M3,
    E5M2,
    EMPTY_GEMM_SHAPES,
    FORMATS,
    GEMM_SHAPES,
    LARGE_GEMM_SHAPES,
    fp8,
    fp8_integers,
    normal,
    scalar,
    shape_id,
)
from conftest import assert_same_bytes, assert_within, moved
from gemm_checks import (
    SCALE_A,
    SCALE_B,
    check_gemm,
    exact_shapes,
    gemm_bound_of,
    operands,
    outputs,
    pairs,
    right_in_threads,
    shapes,
)
from layouts import LAYOUTS, fp8_views
from transcast import reference


@pairs
@outputs
@shapes
def test_bound_shapes(backend, shape, pair, out_dtype):
    check_gemm(backend, operands(shape, pair), out_dtype=out_dtype)


@pairs
@pytest.mark.parametrize("shape", LARGE_GEMM_SHAPES, ids=shape_id)
def test_bound_large(backend, shape, pair):
    args = operands(shape, pair)
    check_gemm(backend, args, normal((shape[1],), torch.float32), "gelu_tanh", out_dtype=torch.bfloat16)


@pairs
@outputs
@pytest.mark.parametrize("shape", [*GEMM_SHAPES, *LARGE_GEMM_SHAPES], ids=shape_id)
def test_bytes_exact_sums(backend, shape, pair, out_dtype):
    """Small integers: FP32 sums are exact in any order, so a lost or doubled product shows to the bit."""
    args = operands(shape, pair, fp8_integers)
    bias = torch.randint(-4, 5, (shape[1],), generator=torch.Generator().manual_seed(3)).to(out_dtype)
    for b, epilogue in ((None, "none"), (bias, "none"), (bias, "relu")):
        got = backend.run("gemm", *args, b, epilogue, None, out_dtype, False)
        want = reference.gemm(*args, b, epilogue, None, out_dtype, False)
        # A sum of -x + x is +0 here and there; relu may keep -0: zero is zero.
        assert_same_bytes(got + 0.0, want + 0.0, f"gemm {epilogue}")


@pairs
@pytest.mark.parametrize("shape", [(3, 700, 500), (300, 700, 130), (1100, 150, 90)], ids=shape_id)
def test_bytes_exact_sums_on_threads(backend, thread_count, shape, pair):
    args = operands(shape, pair, fp8_integers)
    want = reference.gemm(*args, None, "none", None, torch.float32, False)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        got = backend.run("gemm", *args, None, "none", None, torch.float32, False)
        assert_same_bytes(got + 0.0, want + 0.0, f"gemm on {threads} threads")


@pytest.mark.parametrize("m", [1, 3, 8, 40])
def test_bytes_every_code_reaches_the_product(backend, m):
    """One operand holds every finite code, the other picks one per output: y is the code's value."""
    for fmt in FORMATS.values():
        codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(fmt)
        finite = codes[torch.isfinite(codes.to(torch.float32))]
        eye = torch.eye(len(finite)).to(E4M3)
        one = scalar(1.0)
        rows = finite.view(torch.uint8).repeat(m, 1).view(fmt)
        got = backend.run("gemm", rows, eye, one, one, None, "none", None, torch.float32, False)
        assert_same_bytes(got + 0.0, rows.to(torch.float32) + 0.0, f"codes of {fmt} as a")
        got = backend.run("gemm", eye[:m], finite[None], one, one, None, "none", None, torch.float32, False)
        assert_same_bytes(got + 0.0, finite.to(torch.float32)[:m, None] + 0.0, f"codes of {fmt} as b")


@outputs
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
@pytest.mark.parametrize("bias_dtype", [None, *DTYPES.values()], ids=["none", *DTYPES])
@pytest.mark.parametrize("shape", [(1, 67, 40), (33, 70, 96), (32, 64, 64)], ids=shape_id)
def test_bound_bias_and_epilogue(backend, shape, bias_dtype, epilogue, out_dtype):
    bias = None if bias_dtype is None else torch.randn(shape[1], generator=torch.Generator().manual_seed(0))
    check_gemm(
        backend, operands(shape), bias if bias is None else bias.to(bias_dtype), epilogue, out_dtype=out_dtype
    )


@outputs
def test_bias_is_rounded_to_what_the_hardware_takes(backend, out_dtype):
    """BF16 beside FP32 and BF16 outputs, FP16 beside FP16 ones: 1.00390625 + 2^-12 tells all three apart."""
    bias = torch.full((5,), 1.00390625 + 2.0**-12)
    got = backend.run("gemm", *operands((3, 5, 0)), bias, "none", None, out_dtype, False)
    want = {torch.float32: 1.0078125, torch.bfloat16: 1.0078125, torch.float16: 1.00390625}[out_dtype]
    assert got.tolist() == [[want] * 5] * 3


def test_bias_may_be_a_strided_view(backend):
    bias = normal((67, 3), torch.float32)[:, 1]
    for shape in ((2, 67, 40), (9, 67, 40)):
        check_gemm(backend, operands(shape), bias)


@outputs
@pytest.mark.parametrize("aux_dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(2, 67, 40), (33, 70, 96), (32, 64, 64)], ids=shape_id)
def test_bound_dgelu(backend, shape, aux_dtype, out_dtype):
    aux = 2 * torch.randn(shape[:2], generator=torch.Generator().manual_seed(0))
    aux[0, :9] = torch.tensor([0.0, -0.0, 5.3, -5.3, 12.5, -12.5, 60000.0, -60000.0, 1e-30])
    if aux_dtype != torch.float16:
        aux[1, :4] = torch.tensor([1e30, -1e30, 3e38, -3e38])  # x^2 overflows FP32, the slope is still 1 or 0
    check_gemm(backend, operands(shape), None, "dgelu", aux.to(aux_dtype), out_dtype)
    check_gemm(
        backend, operands(shape), normal((shape[1],), torch.bfloat16), "dgelu", aux.to(aux_dtype), out_dtype
    )
    padded = torch.empty(shape[0], shape[1] + 5).to(aux_dtype)
    padded[:, : shape[1]] = aux.to(aux_dtype)
    check_gemm(backend, operands(shape), None, "dgelu", padded[:, : shape[1]], out_dtype)


@outputs
@exact_shapes
def test_bound_epilogues_of_exact_sums(backend, shape, out_dtype):
    m, n, _ = shape
    args, bias = operands(shape, make=fp8_integers), torch.arange(n).remainder(5).to(out_dtype)
    aux = torch.linspace(-6, 6, m * n).view(m, n).to(out_dtype)
    for b in (None, bias):
        for fast_accum in (False, True):
            check_gemm(backend, args, b, "gelu_tanh", None, out_dtype, fast_accum, exact=True)
            check_gemm(backend, args, b, "dgelu", aux, out_dtype, fast_accum, exact=True)


def test_bound_gelu_tanh_over_its_range(backend):
    """K = 1: the pre-activations are chosen, from deep in the negative tail to beyond saturation."""
    a = torch.linspace(-13, 13, 400)[:, None].to(E4M3)
    b = torch.tensor([[1.0], [0.5], [1.5], [28.0]]).to(E4M3)
    for rows in (a, a[:3], a[200:201]):
        check_gemm(backend, [rows, b, scalar(1.0), scalar(1.0)], None, "gelu_tanh", exact=True)


@outputs
@pytest.mark.parametrize("shape", EMPTY_GEMM_SHAPES, ids=shape_id)
def test_S2_empty(backend, shape, out_dtype):
    m, n, k = shape
    args = operands(shape)
    got = backend.run("gemm", *args, None, "none", None, out_dtype, False)
    assert_same_bytes(got, torch.zeros(m, n, dtype=out_dtype), "gemm")
    bias = torch.arange(n).to(out_dtype)
    got = backend.run("gemm", *args, bias, "relu", None, out_dtype, False)
    assert_same_bytes(got, bias.expand(m, n).contiguous(), "gemm with bias")


@pytest.mark.parametrize("m", [1, 4, 5, 33])
@pytest.mark.parametrize("k", [1, 7, 15, 17, 50])
def test_padding_of_a_transposed_operand_is_not_read(backend, m, k):
    """Either operand may have K rounded up to 16; here the surplus holds NaN."""
    a, b, sa, sb = operands((m, 70, k))
    padded = -(-k // 16) * 16

    def pad(t):
        wide = torch.full((t.shape[0], padded), 0x7F, dtype=torch.uint8)
        wide[:, :k] = t.view(torch.uint8)
        return wide.view(t.dtype)

    want = backend.run("gemm", a, b, sa, sb, None, "none", None, torch.float32, False)
    for args in ((pad(a), b), (a, pad(b))):
        got = backend.run("gemm", *args, sa, sb, None, "none", None, torch.float32, False)
        assert_within(got, want.to(torch.float64), 2 * gemm_bound_of(backend, [a, b, sa, sb]), "padded operand")


def test_wgrad_of_ragged_tokens(backend):
    """Two transposed outputs, both padded along the tokens: their zeros add nothing."""
    for tokens in (1, 7, 17, 24):
        g, x = fp8((tokens, 30), E5M2, 1), fp8((tokens, 40), E4M3, 2)
        args = [backend.run("transpose", g), backend.run("transpose", x), scalar(2.0**-12), scalar(2.0**-6)]
        got = check_gemm(backend, args)
        want, _ = reference.gemm_fp64(g.t(), x.t(), *args[2:], None, "none", None, torch.float32)
        assert_within(got, want, gemm_bound_of(backend, args), "wgrad")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S3_S4_S5_layouts(backend, layout):
    for fmt in FORMATS.values():
        a = LAYOUTS[layout](lambda shape: fp8(shape, fmt))
        b = fp8((37, a.shape[-1]), E4M3, 2)
        check_gemm(backend, [a, b, scalar(SCALE_A * 2.0**-8), scalar(SCALE_B)])
        if a.dim() == 2:
            check_gemm(backend, [b, a, scalar(SCALE_A), scalar(SCALE_B * 2.0**-8)])


@given(
    a=fp8_views(E4M3) | fp8_views(E5M2),
    n=st.integers(0, 70),
    out_dtype=st.sampled_from(list(DTYPES.values())),
    epilogue=st.sampled_from(["none", "relu", "gelu_tanh"]),
    with_bias=st.booleans(),
)
def test_bound_any_view(backend, a, n, out_dtype, epilogue, with_bias):
    b = fp8((n, a.shape[-1]), E4M3, 2)
    bias = normal((n,), torch.float32) if with_bias else None
    check_gemm(backend, [a, b, scalar(2.0**-20), scalar(2.0**-4)], bias, epilogue, out_dtype=out_dtype)


@given(b=fp8_views(E4M3) | fp8_views(E5M2), m=st.integers(0, 9))
def test_bound_any_view_of_b(backend, b, m):
    while b.dim() > 2:
        b = b.flatten(0, 1)
    b = b if b.dim() == 2 else b[:, None]
    check_gemm(backend, [fp8((m, b.shape[1]), E4M3), b, scalar(2.0**-4), scalar(2.0**-20)])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=shape_id)
def test_S10_scale_shapes_and_leading_dims(backend, shape):
    a, b, sa, sb = operands((24, 20, 50))
    want = backend.run("gemm", a, b, sa, sb, None, "none", None, torch.bfloat16, False)
    for leading in [(24,), (1, 24), (2, 3, 4)]:
        scales = [s.reshape(shape) for s in (sa, sb)]
        got = backend.run("gemm", a.view(*leading, 50), b, *scales, None, "none", None, torch.bfloat16, False)
        assert got.shape == (*leading, 20)
        assert_same_bytes(got.view(24, 20), want, "gemm")


# Few rows, more, and what a GPU multiplies without a kernel of ours behind it.
v4_shapes = pytest.mark.parametrize("shape", [(2, 30, 20), (9, 30, 20), (9, 32, 32)], ids=shape_id)


@v4_shapes
@pytest.mark.parametrize("epilogue", ["none", "relu", "gelu_tanh"])
def test_V4_non_finite_operands_show(backend, shape, epilogue):
    m, n, k = shape
    a, b, one = fp8_integers((m, k), E4M3, 1), fp8_integers((n, k), E4M3, 2), scalar(1.0)
    a.view(torch.uint8)[1, 19] = 0x7F
    y = backend.run("gemm", a, b, one, one, None, epilogue, None, torch.bfloat16, False)
    assert torch.isnan(y[1]).all() and torch.isfinite(y[0]).all()
    inf = fp8_integers((m, k), E5M2, 1)
    inf.view(torch.uint8)[0, 3] = 0x7C
    positive = torch.ones(n, k).to(E4M3)
    y = backend.run("gemm", inf, positive, one, one, None, epilogue, None, torch.float16, False)
    assert (y[0] == math.inf).all() and torch.isfinite(y[1]).all()


@v4_shapes
def test_V4_a_poisoned_scale_inv_makes_nan(backend, shape):
    a, b, sa, sb = operands(shape)
    for scales in ((scalar(math.nan), sb), (sa, scalar(math.nan))):
        for epilogue in ("none", "relu"):
            y = backend.run("gemm", a, b, *scales, None, epilogue, None, torch.bfloat16, False)
            assert torch.isnan(y).all()


@outputs
def test_fast_accum_stays_within_its_bound(backend, out_dtype):
    check_gemm(backend, operands((33, 40, 300)), out_dtype=out_dtype, fast_accum=True)


@pairs
@outputs
@exact_shapes
def test_bytes_exact_sums_with_fast_accum(backend, shape, pair, out_dtype):
    args = operands(shape, pair, fp8_integers)
    got = backend.run("gemm", *args, None, "none", None, out_dtype, True)
    want = reference.gemm(*args, None, "none", None, out_dtype, True)
    assert_same_bytes(got + 0.0, want + 0.0, "gemm")


def at_byte_of_256(x, byte):
    """A copy whose address is ``byte`` bytes behind a multiple of 256, on the same device."""
    memory = torch.empty(x.numel() * x.element_size() + 512, dtype=torch.uint8, device=x.device)
    start = -memory.data_ptr() % 256 + byte
    copy = memory[start : start + x.numel() * x.element_size()].view(x.dtype).view(x.shape)
    return copy.copy_(x)


@pytest.mark.parametrize("which", ["a", "b", "bias", "out"])
def test_pointers_of_any_alignment(backend, which):
    """The same product again and again: what was chosen for a pointer must not run for a less aligned one."""
    a, b, sa, sb = operands((24, 32, 48), make=fp8_integers)
    bias = torch.ones(32, dtype=torch.bfloat16)
    want = reference.gemm(a, b, sa, sb, bias, "none", None, torch.bfloat16, False)
    tensors = {"a": a, "b": b, "bias": bias, "out": torch.zeros_like(want)}
    sa, sb = moved((sa, sb), backend.device)
    for byte in (0, 16, 32, 2, 8, 128, 0):
        at = {
            name: at_byte_of_256(moved(x, backend.device), byte if name == which else 0)
            for name, x in tensors.items()
        }
        backend.ops.gemm_out(
            at["a"], at["b"], sa, sb, at["bias"], "none", None, False, False, at["out"], None
        )
        assert_same_bytes(at["out"].cpu(), want, f"out with {which} at byte {byte}")


def test_threads_get_their_own_products(backend):
    """Products alike in all but their values run at the same time."""

    def multiply(args):
        return backend.run("gemm", *args, None, "none", None, torch.float32, False)

    assert right_in_threads(multiply) == [True] * 120


@outputs
def test_overflow_of_the_output_is_inf(backend, out_dtype):
    a, b = torch.full((6, 64), 448.0).to(E4M3), torch.full((5, 64), 448.0).to(E4M3)
    largest = torch.finfo(out_dtype).max
    scale = scalar(largest / (64 * 448.0**2) * 1.5)
    y = backend.run("gemm", a, b, scale, scalar(1.0), None, "none", None, out_dtype, False)
    assert (y == math.inf).all()


def test_dgelu_reads_aux_of_any_strides(backend):
    a, b = (fp8_integers((rows, 16), E4M3, seed=rows).to(backend.device) for rows in (8, 5))
    one, aux = torch.ones((), device=backend.device), normal((5, 8), torch.float32).to(backend.device)
    for strided in (aux.t(), aux[:, :1].t().expand(8, 5)):
        run = [
            backend.ops.gemm(a, b, one, one, None, "dgelu", x, torch.float32, False)
            for x in (strided, strided.contiguous())
        ]
        assert_same_bytes(*run, "dgelu")
