"""The public wrappers: what they add to the raw ops, which are tested by themselves."""

from __future__ import annotations

import pytest
import torch

import transcast as tc
from cases import ACT_OPS, CAST_OPS, DACT_OPS, E4M3, E5M2, OUTPUTS, QUANTIZE_OPS, fp8, normal, scalar
from conftest import assert_same_bytes
from gemm_checks import operands

RAW = torch.ops.transcast
X, SCALE = normal((5, 6), torch.bfloat16), scalar(1.7)
A, B, SA, SB = operands((5, 6, 33))
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16


def gemm_fp8(**kwargs):
    return tc.gemm_fp8(A, B, SA, SB, out_scale=SCALE, **kwargs)


def raw_fp8(bias=None, epilogue="none", dtype=E4M3, fast_accum=False, aux=None):
    return RAW.gemm_fp8(A, B, SA, SB, SCALE, bias, epilogue, dtype, fast_accum, aux)


def given(op):
    return (SCALE,) if "cast" in op else ()


BIAS = normal((6,), BF16)
TUPLES = [
    *[(op, lambda op=op: getattr(tc, op)(X, SCALE, E5M2), (X, SCALE, E5M2)) for op in CAST_OPS],
    *[(op, lambda op=op: getattr(tc, op)(X, E4M3), (X, E4M3)) for op in QUANTIZE_OPS],
    *[
        (op, lambda op=op: getattr(tc, op)(X, E4M3, pow2=True, margin=2), (X, E4M3, True, 2))
        for op in QUANTIZE_OPS
    ],
    *[
        (op, lambda op=op: getattr(tc, op)(X, *given(op), E4M3, act="swiglu"), (X, *given(op), E4M3, "swiglu"))
        for op in ACT_OPS
    ],
    *[
        (
            op,
            lambda op=op: getattr(tc, op)(X, X, *given(op), E5M2, act="swiglu", up=X),
            (X, X, *given(op), E5M2, "swiglu", X),
        )
        for op in DACT_OPS
    ],
    *[
        (
            op,
            lambda op=op, data=data: getattr(tc, op)(*data, E4M3, act="silu", pow2=True, margin=2),
            (*data, E4M3, "silu", None, True, 2),
        )
        for op, data in ((ACT_OPS[2], [X]), (ACT_OPS[3], [X]), (DACT_OPS[1], [X, X]))
    ],
    ("gemm_fp8", gemm_fp8, (A, B, SA, SB, SCALE, None, "none", E4M3, False, None)),
    (
        "gemm_fp8",
        lambda: gemm_fp8(dtype=E5M2, bias=BIAS, epilogue="relu", fast_accum=True),
        (A, B, SA, SB, SCALE, BIAS, "relu", E5M2, True, None),
    ),
]


@pytest.mark.parametrize("op, call, raw", TUPLES, ids=[f"{i}-{op}" for i, (op, *_) in enumerate(TUPLES)])
def test_named_tuples_of_the_raw_results(op, call, raw):
    got, want = call(), getattr(RAW, op)(*raw)
    assert got._fields == OUTPUTS[op] and len(got) == len(want)
    for name, g, w in zip(got._fields, got, want):
        assert_same_bytes(g, w, name)


def test_single_results():
    assert_same_bytes(tc.amax(X), RAW.amax(X), "amax")
    q = fp8((5, 6), E4M3)
    assert_same_bytes(tc.dequantize(q, SCALE), RAW.dequantize(q, SCALE, BF16), "dequantize")
    assert_same_bytes(tc.dequantize(q, SCALE, F16), RAW.dequantize(q, SCALE, F16), "dequantize")
    assert_same_bytes(tc.transpose(q), RAW.transpose(q), "transpose")


@pytest.mark.parametrize("out_dtype", [F32, BF16, F16])
def test_gemm_in_its_forms(out_dtype):
    def raw(bias=None, epilogue="none", aux=None, fast_accum=False):
        return RAW.gemm(A, B, SA, SB, bias, epilogue, aux, out_dtype, fast_accum)

    def call(**kwargs):
        return tc.gemm(A, B, SA, SB, **({"out_dtype": out_dtype} | kwargs))

    assert_same_bytes(call(), raw(), "gemm")
    assert_same_bytes(
        call(bias=BIAS, epilogue="relu", fast_accum=True), raw(BIAS, "relu", None, True), "relu"
    )
    assert_same_bytes(call(epilogue="gelu_tanh"), raw(None, "gelu_tanh"), "gelu_tanh")
    aux = torch.empty(5, 6, dtype=out_dtype)
    assert_same_bytes(call(epilogue="gelu_tanh", aux=aux), raw(None, "gelu_tanh"), "gelu_tanh with aux")
    assert_same_bytes(aux, raw(), "aux")
    assert_same_bytes(call(epilogue="dgelu", aux=aux), raw(None, "dgelu", aux), "dgelu")
    out = torch.empty(5, 6, dtype=out_dtype)
    assert call(out=out, bias=BIAS, out_dtype=F32) is out  # the dtype of out counts
    assert_same_bytes(out, raw(BIAS), "out")
    aux.zero_()
    assert call(out=out, epilogue="gelu_tanh", aux=aux) is out
    assert_same_bytes(out, raw(None, "gelu_tanh"), "out of gelu_tanh")
    assert_same_bytes(aux, raw(), "aux beside out")


def test_gemm_defaults_to_bf16():
    assert tc.gemm(A, B, SA, SB).dtype == BF16


def test_gemm_accumulates():
    out = torch.zeros(5, 6)
    for _ in range(2):
        assert tc.gemm(A, B, SA, SB, out=out, accumulate=True) is out
    assert_same_bytes(out, 2 * tc.gemm(A, B, SA, SB, out_dtype=F32), "twice the product")


def test_gemm_fp8_saves_the_pre_activation():
    aux, raw_aux = torch.empty(5, 6, dtype=BF16), torch.empty(5, 6, dtype=BF16)
    got, want = gemm_fp8(epilogue="gelu_tanh", aux=aux), raw_fp8(epilogue="gelu_tanh", aux=raw_aux)
    assert_same_bytes(got.q, want[0], "q")
    assert_same_bytes(aux, raw_aux, "aux")
    assert_same_bytes(aux, tc.gemm(A, B, SA, SB), "aux")


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: tc.gemm(A, B, SA, SB, accumulate=True), ValueError, "accumulate needs out"),
        (lambda: tc.gemm(A, B, SA, 1.0), TypeError, "gemm: b_scale_inv must be a Tensor, got float"),
        (lambda: tc.gemm(A, B, SA, SB, out_dtype="bf16"), TypeError, "dtype must be a torch.dtype, got str"),
        (lambda: tc.quantize(X, "e4m3"), TypeError, "quantize: dtype must be a torch.dtype, got str"),
        (lambda: tc.quantize(X, torch.quint8), ValueError, "dtype must be float8_e4m3fn or float8_e5m2, got quint8"),
        (lambda: tc.gemm_fp8(A, B, SA, SB, out_scale=SCALE, dtype=torch.bits8), ValueError, "float8_e5m2, got bits8"),
        (lambda: tc.dequantize(A, SA, torch.qint32), ValueError, "float32, bfloat16 or float16, got qint32"),
        (lambda: tc.gemm(A, B, SA, SB, out_dtype=torch.int64), ValueError, "out_dtype must be float32, bfloat16"),
        (lambda: tc.quantize(X, F16), ValueError, "must be float8_e4m3fn or float8_e5m2, got float16"),
        (lambda: tc.cast([1.0], SCALE, E4M3), TypeError, "cast: x must be a Tensor, got list"),
        (lambda: tc.gemm(A, B[0], SA, SB, epilogue="gelu_tanh", aux=X), ValueError, "b must be [N, K]"),
        (lambda: tc.gemm(A, B, SA, SB, epilogue="tanh"), ValueError, "epilogue must be"),
        (lambda: tc.gemm(A, B, SA, SB, epilogue=3), TypeError, "epilogue must be of type str, got int"),
        (lambda: tc.gemm(A, B, SA, SB, fast_accum=1), TypeError, "fast_accum must be of type bool, got int"),
        (lambda: tc.gemm(None, B, SA, SB), TypeError, "gemm: a must be a Tensor, got NoneType"),
        (lambda: tc.amax(None), TypeError, "amax: x must be a Tensor, got NoneType"),
        (lambda: tc.cast(X, SCALE, None), TypeError, "cast: dtype must be a torch.dtype, got NoneType"),
        (lambda: tc.quantize(X, E4M3, pow2="a"), TypeError, "pow2 must be of type bool, got str"),
        (lambda: tc.quantize(X, E4M3, margin=0.5), TypeError, "margin must be of type int, got float"),
        (lambda: tc.quantize(X, E4M3, margin=2**70), ValueError, "margin must be between -64 and 64"),
        (lambda: tc.act_cast(X, SCALE, E4M3, act=1), TypeError, "act_cast: act must be of type str, got int"),
        (lambda: tc.act_quantize(X, E4M3, act="silu", pow2=1), TypeError, "pow2 must be of type bool, got int"),
        (lambda: tc.act_quantize(X, E4M3, act="tanh"), ValueError, "act must be gelu_tanh, silu or swiglu"),
        (lambda: tc.act_quantize(X, E4M3, act="swiglu", up=2), TypeError, "up must be a Tensor, got int"),
        (lambda: tc.dact_quantize_transpose_dbias(None, X, E5M2, act="silu"), TypeError, "g must be a Tensor"),
        (lambda: tc.multi_quantize_transpose(X, E4M3), TypeError, "xs must be a list of Tensors, got Tensor"),
        (lambda: tc.multi_quantize_transpose([X, 3], E4M3), TypeError, "xs[1] must be a Tensor, got int"),
        (lambda: tc.multi_quantize_transpose([X, X.to("meta")], E4M3), ValueError, "must be on one device"),
        (lambda: tc.amax(X.to_sparse()), ValueError, "x must be a dense tensor on the CPU or a CUDA device"),
        (lambda: tc.cast(X, SCALE.to("meta"), E4M3), ValueError, "must be on one device, got cpu, meta"),
        (lambda: tc.gemm(A, B, SA, SB, bias=torch.ones(6, device="meta")), ValueError, "must be on one device"),
    ],
)  # fmt: skip
def test_wrong_calls(call, error, words):
    with pytest.raises(error) as raised:
        call()
    assert words in str(raised.value)


@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning", "ignore:.*quantized tensor:UserWarning")
def test_tensors_that_only_look_dense_are_refused_by_name():
    x = X.float()
    for made, kind in (
        (lambda: torch.nested.nested_tensor([x, x]), "nested"),
        (lambda: torch.quantize_per_tensor(x, 1.0, 0, torch.quint8), "quantized"),
    ):
        with pytest.raises(ValueError) as raised:
            tc.quantize(made(), E4M3)
        words = f"x must be a dense tensor on the CPU or a CUDA device, got {kind} on cpu"
        assert str(raised.value) == f"transcast.quantize: {words}"


def test_named_tuples_pass_through_compile():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: tc.quantize_transpose(x, E4M3), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        got, want = compiled(X), tc.quantize_transpose(X, E4M3)
    assert type(got) is type(want)
    for name, g, w in zip(want._fields, got, want):
        assert_same_bytes(g, w, name)


def test_written_tensors_count_as_modified():
    out, aux = torch.ones(5, 6), torch.ones(5, 6)
    versions = out._version, aux._version
    tc.gemm(A, B, SA, SB, out=out, epilogue="gelu_tanh", aux=aux)
    gemm_fp8(epilogue="gelu_tanh", aux=(fp8_aux := torch.ones(5, 6, dtype=BF16)))
    assert (out._version, aux._version) == (versions[0] + 1, versions[1] + 1) and fp8_aux._version == 1
    weight, saved = torch.ones(5, 6, requires_grad=True), torch.ones(5, 6)
    y = (weight * saved).sum()
    tc.gemm(A, B, SA, SB, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_out_in_inference_mode():
    with torch.inference_mode():
        assert tc.gemm(A, B, SA, SB, out=torch.ones(5, 6)).is_inference()


def test_tangents_are_refused():
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(X, X)
        with pytest.raises(RuntimeError, match="quantize has no forward-mode derivative, and x carries a tangent"):
            tc.quantize(dual, E4M3)


def test_out_scale_inside_aux_is_refused():
    """Some of aux may be written before the scale is read."""
    buffer = torch.zeros(5, 6, dtype=F32)
    aux = buffer.view(BF16)[:, :6]
    buffer[0, 0] = 0.5
    with pytest.raises(ValueError, match="aux_out must not share memory with out_scale"):
        tc.gemm_fp8(A, B, SA, SB, out_scale=buffer[0, 0], epilogue="gelu_tanh", aux=aux)
    got = tc.gemm_fp8(A, B, SA, SB, out_scale=buffer[0, 0].clone(), epilogue="gelu_tanh", aux=aux)
    assert got.scale_inv.item() == 2.0
