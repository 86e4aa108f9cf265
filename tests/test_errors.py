"""Wrong arguments: a ValueError that names op, argument, expected and got; nothing is written."""

from __future__ import annotations

import re

import pytest
import torch

import transcast as tc
from cases import ACT_OPS, CAST_OPS, DACT_OPS, E4M3, E5M2, OUTPUTS, QUANTIZE_OPS, fp8, normal, scalar
from conftest import assert_same_bytes, moved

X, ONE = normal((4, 6), torch.float32), scalar(1.0)
A, B = fp8((4, 32), E4M3, 1), fp8((6, 32), E4M3, 2)
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
HALF_BIAS = torch.zeros(6, dtype=BF16)


def gemm_args(**changes):
    args = dict(a=A, b=B, a_scale_inv=ONE, b_scale_inv=ONE, bias=None, epilogue="none", aux=None)
    return args | dict(out_dtype=F32, fast_accum=False) | changes


def out_args(**changes):
    args = gemm_args()
    del args["out_dtype"]
    return args | dict(accumulate=False, out=torch.full((4, 6), 5.0), aux_out=None) | changes


def fp8_args(**changes):
    args = gemm_args(dtype=E4M3, out_scale=ONE, aux_out=None)
    del args["out_dtype"], args["aux"]
    return args | changes


# op, arguments, the argument at fault, words that the message must hold: what was expected, what came.
BAD_SCALES = [
    (torch.ones(2), "one element", "(2,)"), (torch.ones(0), "one element", "(0,)"),
    (scalar(1.0).double(), "float32", "float64"), (scalar(1.0).half(), "float32", "float16"),
]  # fmt: skip
BAD_DTYPES = [(F16, "float8_e4m3fn", "float16"), (torch.float8_e4m3fnuz, "float8_e4m3fn", "float8_e4m3fnuz")]
MANY_DIMS = torch.ones([1] * 65)
WRONG = [
    ("amax", dict(x=X.double()), "x", "float32", "float64"),
    ("amax", dict(x=A), "x", "float32", "float8_e4m3fn"),
    *[(op, dict(x=X.int(), scale=ONE, dtype=E4M3), "x", "bfloat16", "int32") for op in CAST_OPS],
    *[(op, dict(x=X, scale=s, dtype=E4M3), "scale", *words) for op in CAST_OPS for s, *words in BAD_SCALES],
    *[(op, dict(x=X, scale=ONE, dtype=d), "dtype", *words) for op in CAST_OPS for d, *words in BAD_DTYPES],
    *[(op, dict(x=X[0, 0], scale=ONE, dtype=E4M3), "x", "dimension", "()") for op in CAST_OPS[1:]],
    *[(op, dict(x=X.to(torch.int8), dtype=E4M3), "x", "float16", "int8") for op in QUANTIZE_OPS],
    *[(op, dict(x=X, dtype=d), "dtype", *words) for op in QUANTIZE_OPS for d, *words in BAD_DTYPES],
    *[(op, dict(x=X, dtype=E4M3, margin=65), "margin", "64", "65") for op in QUANTIZE_OPS],
    *[(op, dict(x=X, dtype=E4M3, margin=-65), "margin", "-64", "-65") for op in QUANTIZE_OPS],
    *[(op, dict(x=X[0, 0], dtype=E4M3), "x", "dimension", "()") for op in QUANTIZE_OPS[1:]],
    ("multi_quantize_transpose", dict(xs=[X, X.int()], dtype=E4M3), r"xs\[1\]", "bfloat16", "int32"),
    ("multi_quantize_transpose", dict(xs=[X[0, 0], X], dtype=E4M3), r"xs\[0\]", "dimension", "()"),
    ("multi_quantize_transpose", dict(xs=[X], dtype=F16), "dtype", "float8_e4m3fn", "float16"),
    ("multi_quantize_transpose", dict(xs=[X], dtype=E4M3, margin=65), "margin", "64", "65"),
    ("dequantize", dict(q=X, scale_inv=ONE, dtype=F32), "q", "float8_e5m2", "float32"),
    *[("dequantize", dict(q=A, scale_inv=s, dtype=F32), "scale_inv", *words) for s, *words in BAD_SCALES],
    ("dequantize", dict(q=A, scale_inv=ONE, dtype=E4M3), "dtype", "float32", "float8_e4m3fn"),
    ("transpose", dict(q=X.to(torch.uint8)), "q", "float8_e4m3fn", "uint8"),
    ("transpose", dict(q=A[0, 0]), "q", "dimension", "()"),
    ("quantize", dict(x=MANY_DIMS, dtype=E4M3), "x", "at most 64 dimensions", "65"),
    ("cast_transpose", dict(x=MANY_DIMS, scale=ONE, dtype=E4M3), "x", "at most 64 dimensions", "65"),
    ("dequantize", dict(q=MANY_DIMS.to(E4M3), scale_inv=ONE, dtype=F32), "q", "at most 64 dimensions", "65"),
]  # fmt: skip


def act_call(op, **changes):
    """Right arguments, but for the changes: x is [gate | up], so that g and up have half its columns."""
    args = dict(x=X, dtype=E4M3, act="swiglu", up=None)
    args |= dict(scale=ONE) if "cast" in op else {}
    args |= dict(g=X[:, :3]) if op in DACT_OPS else {}
    return args | changes


WRONG_ACT = [
    (dict(x=X.double()), "x", "bfloat16", "float64"),
    (dict(x=A), "x", "float16", "float8_e4m3fn"),
    (dict(x=X[:, :5]), "x", "[gate | up]", "(4, 5)"),
    (dict(x=X[0, 0]), "x", "dimension", "()"),
    (dict(dtype=F16), "dtype", "float8_e4m3fn", "float16"),
    (dict(act="gelu"), "act", "gelu_tanh, silu or swiglu", "got gelu"),
    (dict(act="silu", up=X), "up", "swiglu", "silu"),
    (dict(up=X[:, :5]), "up", "(4, 6)", "(4, 5)"),
    (dict(up=X[0]), "up", "(4, 6)", "(6,)"),
    (dict(up=X.half()), "up", "float32", "float16"),
]
WRONG_G = [
    (dict(g=X), "g", "(4, 3)", "(4, 6)"),
    (dict(g=X[:3, :3]), "g", "(4, 3)", "(3, 3)"),
    (dict(g=X, act="gelu_tanh", x=X[:, :5]), "g", "(4, 5)", "(4, 6)"),
    (dict(g=X[:, :3].half()), "g", "float32", "float16"),
    (dict(g=X[:, :3].to(torch.int8)), "g", "float32", "int8"),
]
WRONG += [(op, act_call(op, **c), *rest) for op in (*ACT_OPS, *DACT_OPS) for c, *rest in WRONG_ACT]
WRONG += [(op, act_call(op, **changes), *rest) for op in DACT_OPS for changes, *rest in WRONG_G]
WRONG += [
    (op, act_call(op, scale=scale), "scale", *words)
    for op in (ACT_OPS[0], ACT_OPS[1], DACT_OPS[0])
    for scale, *words in BAD_SCALES
]
WRONG += [
    (op, act_call(op, margin=margin), "margin", "64", str(margin))
    for op in (ACT_OPS[2], ACT_OPS[3], DACT_OPS[1])
    for margin in (65, -65)
]
WRONG_OPERANDS = [
    (dict(a=X), "a", "float8_e4m3fn", "float32"),
    (dict(b=X), "b", "float8_e5m2", "float32"),
    (dict(a=A[0, 0]), "a", "dimension", "()"),
    (dict(b=B[0]), "b", "[N, K]", "(32,)"),
    (dict(b=B[None]), "b", "[N, K]", "(1, 6, 32)"),
    (dict(b=B[:, :16]), "b", "32", "16"),
    (
        dict(a=A.view(torch.uint8).view(E5M2), b=B.view(torch.uint8).view(E5M2)),
        "b",
        "float8_e4m3fn",
        "float8_e5m2",
    ),
    (dict(a_scale_inv=torch.ones(4)), "a_scale_inv", "one float32 element", "(4,)"),
    (dict(b_scale_inv=torch.ones(2, 1)), "b_scale_inv", "one float32 element", "(2, 1)"),
    (dict(b_scale_inv=torch.ones((), dtype=BF16)), "b_scale_inv", "float32", "bfloat16"),
    (dict(bias=HALF_BIAS[:5]), "bias", "(6,)", "(5,)"),
    (dict(bias=HALF_BIAS[None]), "bias", "(6,)", "(1, 6)"),
    (dict(bias=torch.zeros(6, dtype=torch.float64)), "bias", "float32", "float64"),
    (dict(epilogue="gelu"), "epilogue", "gelu_tanh", "got gelu"),
]
NAN_AUX = torch.full((4, 6), 7.0)
WRONG_GEMM = [
    (dict(out_dtype=E4M3), "out_dtype", "float32", "float8_e4m3fn"),
    (dict(epilogue="dgelu"), "aux", "dgelu", "None"),
    (dict(epilogue="relu", aux=NAN_AUX), "aux", "dgelu", "gelu_tanh"),
    (dict(epilogue="dgelu", aux=NAN_AUX[:, :5]), "aux", "shape", "(4, 5)"),
    (dict(epilogue="dgelu", aux=A), "aux", "float32", "float8_e4m3fn"),
]
WRONG_OUT = [
    (dict(out=torch.zeros(4, 5)), "out", "shape", "(4, 5)"),
    (dict(out=torch.zeros(4, 6, dtype=torch.float64)), "out", "float32", "float64"),
    (dict(out=torch.zeros(6, 4).t()), "out", "contiguous", "stride"),
    (dict(out=torch.zeros(1, 6).expand(4, 6)), "out", "overlap", "0"),
    (dict(out=torch.zeros(4, 6, dtype=F16), accumulate=True), "out", "bfloat16", "float16"),
    (dict(epilogue="relu", accumulate=True), "epilogue", "none", "relu"),
    (dict(aux_out=torch.zeros(4, 6)), "aux_out", "gelu_tanh", "aux_out"),
    (dict(epilogue="gelu_tanh", aux_out=torch.zeros(4, 7)), "aux_out", "shape", "(4, 7)"),
    (dict(epilogue="gelu_tanh", aux_out=torch.zeros(4, 6).int()), "aux_out", "float16", "int32"),
]
WRONG_FP8 = [
    (dict(out_scale=torch.ones(3)), "out_scale", "one element", "(3,)"),
    (dict(dtype=F32), "dtype", "float8_e5m2", "float32"),
    (dict(epilogue="dgelu"), "epilogue", "gelu_tanh", "dgelu"),
    (dict(epilogue="gelu_tanh", aux_out=torch.zeros(2, 6)), "aux_out", "shape", "(2, 6)"),
]
WRONG += [
    (op, make(**changes), *rest)
    for op, make in (("gemm", gemm_args), ("gemm_out", out_args), ("gemm_fp8", fp8_args))
    for changes, *rest in WRONG_OPERANDS
]
WRONG += [("gemm", gemm_args(**changes), *rest) for changes, *rest in WRONG_GEMM]
WRONG += [("gemm_out", out_args(**changes), *rest) for changes, *rest in WRONG_OUT]
WRONG += [("gemm_fp8", fp8_args(**changes), *rest) for changes, *rest in WRONG_FP8]


def check_message(message: str, case: tuple) -> None:
    op, _, argument, expected, got = case
    assert re.match(rf"transcast::{op}: {argument} ", message), message
    assert expected in message and got in message, message
    assert "\n" not in message and ".cpp" not in message and ".h:" not in message, message


def on(backend, args: dict) -> dict:
    return dict(zip(args, moved(list(args.values()), backend.device)))


@pytest.mark.parametrize("case", WRONG, ids=lambda case: f"{case[0]}-{case[2]}-{case[4]}")
def test_wrong_argument(backend, case):
    op, args, *_ = case
    args = on(backend, args)
    outputs = {
        name: args[name].clone() for name in ("out", "aux_out") if isinstance(args.get(name), torch.Tensor)
    }
    with pytest.raises(ValueError) as error:
        getattr(backend.ops, op)(**args)
    check_message(str(error.value), case)
    for name, before in outputs.items():
        assert_same_bytes(args[name], before, f"{name} after a refusal")


OTHER_DTYPES = "float8_e8m0fnu float8_e5m2fnuz float4_e2m1fn_x2 uint16 uint32 uint64 bool complex32 complex64"


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.parametrize("name", OTHER_DTYPES.split())
def test_dtypes_are_called_by_their_names(backend, name):
    x = torch.empty(4, 6, dtype=getattr(torch, name), device=backend.device)
    with pytest.raises(ValueError, match=f"amax: x must be float32, bfloat16 or float16, got {name}$"):
        backend.ops.amax(x)


@pytest.mark.parametrize(
    "fault", [dict(b=B[:, :16]), dict(bias=HALF_BIAS[:5]), dict(aux_out=torch.zeros(4, 7))]
)
def test_outputs_untouched_by_a_failing_op(backend, fault):
    out, aux_out = (torch.full((4, 6), value, device=backend.device) for value in (5.0, 6.0))
    args = out_args(out=out, aux_out=aux_out, epilogue="gelu_tanh") | fault
    with pytest.raises(ValueError, match="transcast::gemm_out: (b|bias|aux_out) "):
        backend.ops.gemm_out(**on(backend, args))
    assert (out == 5).all() and (aux_out == 6).all()


def test_out_must_not_share_memory_with_an_operand(backend):
    memory = torch.zeros(4 * 32, dtype=torch.uint8, device=backend.device)
    a, out = memory.view(E4M3).view(4, 32), memory.view(F32)[:24].view(4, 6)
    for operands in (dict(a=a), dict(a=B, b=a, out=memory.view(F32)[:24].view(6, 4))):
        with pytest.raises(ValueError, match="gemm_out: out must not share memory"):
            backend.ops.gemm_out(**on(backend, out_args(out=out) | operands))
    assert not memory.any()


def test_wrong_types_are_torch_errors(backend):
    x = moved(X, backend.device)
    for call in (
        lambda: backend.ops.amax(3.0),
        lambda: backend.ops.cast(x, 1.0, E4M3),
        lambda: backend.ops.quantize(x, "e4m3"),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            call()


def test_a_device_without_kernels_is_refused_by_name(backend):
    with pytest.raises(NotImplementedError, match="transcast::amax"):
        backend.ops.amax(torch.eye(3, device=backend.device).to_sparse())


# --- tc.*: grad mode ------------------------------------------------------------------------------


def leaf(shape: tuple[int, ...]) -> torch.Tensor:
    return normal(shape, F32).requires_grad_()


WITH_GRAD = {
    "amax": lambda: tc.amax(leaf((4, 6))),
    **{op: lambda op=op: getattr(tc, op)(leaf((4, 6)), ONE, E4M3) for op in CAST_OPS},
    **{op: lambda op=op: getattr(tc, op)(leaf((4, 6)), E4M3) for op in QUANTIZE_OPS},
    "multi_quantize_transpose": lambda: tc.multi_quantize_transpose([X, leaf((4, 6))], E4M3),
    **{op: lambda op=op: getattr(tc, op)(leaf((4, 6)), ONE, E4M3, act="silu") for op in ACT_OPS[:2]},
    **{op: lambda op=op: getattr(tc, op)(X, E4M3, act="swiglu", up=leaf((4, 6))) for op in ACT_OPS[2:]},
    DACT_OPS[0]: lambda: tc.dact_cast_transpose_dbias(leaf((4, 6)), X, ONE, E5M2, act="silu"),
    DACT_OPS[1]: lambda: tc.dact_quantize_transpose_dbias(X, leaf((4, 6)), E5M2, act="silu"),
    "dequantize": lambda: tc.dequantize(A, leaf((1,))),
    "transpose": lambda: tc.transpose(leaf((4, 6)).detach().to(E4M3).requires_grad_()),
    "gemm": lambda: tc.gemm(A, B, ONE, ONE, bias=leaf((6,))),
    "gemm_fp8": lambda: tc.gemm_fp8(A, B, ONE, ONE, out_scale=ONE, bias=leaf((6,))),
}


@pytest.mark.parametrize("op", WITH_GRAD)
def test_an_input_that_requires_grad_is_refused_in_grad_mode(op):
    with pytest.raises(RuntimeError) as error:
        WITH_GRAD[op]()
    message = str(error.value)
    assert op in message and "transcast.linear" in message and "torch.autograd.Function" in message
    with torch.no_grad():
        WITH_GRAD[op]()


def test_every_registered_op_is_in_the_table():
    names = [schema.name for schema in torch._C._jit_get_all_schemas()]
    assert {name.split("::")[1] for name in names if name.startswith("transcast::")} == set(OUTPUTS)


@pytest.mark.parametrize("op", [*CAST_OPS, *QUANTIZE_OPS, *ACT_OPS, *DACT_OPS, "multi_quantize_transpose"])
def test_nothing_is_copied_before_all_is_checked(backend, op):
    """A layout that ops must copy, beside each wrong argument in turn."""
    x = moved(torch.zeros(6, 4, 8).permute(2, 0, 1), backend.device)
    right = dict(scale=moved(ONE, backend.device), dtype=E4M3, act="swiglu", up=x, pow2=False, margin=0)
    wrong = dict(scale=moved(torch.ones(2), backend.device), dtype=F16, act="tanh", up=x[:1], margin=65)
    wrong["xs"] = [x, x.int()]
    operands = dict(xs=[x, x]) if op.startswith("multi") else dict(x=x, g=x) if op in DACT_OPS else dict(x=x)
    schema = getattr(backend.ops, op).default._schema
    names = [argument.name for argument in schema.arguments]
    arguments = {name: value for name, value in (operands | right).items() if name in names}

    def copies(**changes) -> list[str]:
        with torch.autograd.profiler.profile() as profile:
            try:
                getattr(backend.ops, op)(**(arguments | changes))
            except ValueError:
                assert changes
        names = [event.name for event in profile.function_events]
        return [name for name in names if name in ("aten::contiguous", "aten::clone")]

    assert copies(), "the layout is one that ops take as it is: nothing is tested"
    for name in wrong.keys() & arguments.keys():
        assert copies(**{name: wrong[name]}) == [], name
