"""What torch.compile and export see of the ops: schemas, fakes, symbolic sizes, one graph for many shapes."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.library import opcheck

from act_args import act_args, dact_args, gradient_for
from cases import (
    ACT_OPS,
    ACTS,
    CAST_OPS,
    DACT_OPS,
    DTYPES,
    E4M3,
    E5M2,
    FP8_MAX,
    OUTPUTS,
    QUANTIZE_OPS,
    fp8,
    normal,
    scalar,
)
from conftest import assert_same_bytes, moved
from test_errors import WRONG, check_message, fp8_args, gemm_args, out_args

OPCHECKS = ["test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"]
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
A, B, SA, SB = fp8((5, 32), E4M3, 1), fp8((6, 32), E4M3, 2), scalar(2.0**-9), scalar(2.0**-4)


def op_calls() -> list[tuple[str, tuple]]:
    """Each op with several kinds of arguments: dtypes, formats, ranks, views, empty ones."""
    calls = []
    for x in (
        normal((5, 6), F32),
        normal((2, 3, 7), BF16),
        normal((9, 4), F16).t(),
        torch.empty(0, 4),
        normal((3,), F32),
    ):
        calls.append(("amax", (x,)))
        calls += [(op, (x, scalar(1.7), fmt)) for op in CAST_OPS for fmt in (E4M3, E5M2)]
        calls += [(op, (x, fmt, True, 1)) for op in QUANTIZE_OPS for fmt in (E4M3, E5M2)]
        calls += [(op, (x, E4M3)) for op in QUANTIZE_OPS]
    pair = [normal((5, 6), F32), normal((2, 3, 7), BF16).transpose(0, 1)]
    for args in ([], E4M3), (pair, E4M3), (pair, E5M2, True, 1):
        calls.append(("multi_quantize_transpose", args))
    for x in (normal((5, 6), F32), normal((2, 3, 8), BF16), normal((8, 9), F16).t(), torch.empty(0, 4)):
        for act, up in [*((act, None) for act in ACTS), ("swiglu", normal(tuple(x.shape), x.dtype, 1))]:
            if act == "swiglu" and up is None and x.shape[-1] % 2:
                continue
            calls += [(op, act_args(op, x, act, up, E4M3)) for op in ACT_OPS]
            calls += [(op, dact_args(op, gradient_for(x, act, up), x, act, up, E5M2)) for op in DACT_OPS]
    for q in (fp8((5, 6), E4M3), fp8((2, 3, 7), E5M2), fp8((9, 4), E4M3).t(), fp8((0, 4), E4M3)):
        calls += [("dequantize", (q, scalar(0.3), dtype)) for dtype in DTYPES.values()]
        calls.append(("transpose", (q,)))
    bias, aux = normal((6,), F32), normal((5, 6), F32)
    for a in (A, A.view(5, 1, 32), fp8((5, 32), E5M2), A[:0]):
        calls += [("gemm", (a, B, SA, SB, bias, "relu", None, dtype, False)) for dtype in DTYPES.values()]
        calls.append(("gemm_fp8", (a, B, SA, SB, scalar(0.5), bias, "gelu_tanh", E5M2, True, None)))
    calls.append(("gemm", (A, B, SA, SB, None, "dgelu", aux, BF16, False)))
    out, aux_out = torch.zeros(5, 6), torch.zeros(5, 6)
    calls.append(("gemm_out", (A, B, SA, SB, bias, "gelu_tanh", None, False, False, out, aux_out)))
    calls.append(("gemm_out", (A, B, SA, SB, None, "none", None, True, True, out, None)))
    calls.append(
        (
            "gemm_fp8",
            (A, B, SA, SB, scalar(0.5), None, "gelu_tanh", E4M3, False, torch.zeros(5, 6, dtype=BF16)),
        )
    )
    return calls


def tensors_in(values: list | tuple) -> list[torch.Tensor]:
    """The tensors among the values and in their lists."""
    found = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += tensors_in(value)
        elif isinstance(value, torch.Tensor):
            found.append(value)
    return found


def schema_holds(op: torch._ops.OpOverload, args: tuple) -> None:
    """Nothing but what the schema marks is written, and no output shares memory with an input."""
    tensors = {
        s.name + "'" * i: t for s, a in zip(op._schema.arguments, args) for i, t in enumerate(tensors_in([a]))
    }
    before = {name: t.clone() for name, t in tensors.items()}
    results = tensors_in([op(*args)])
    written = {s.name for s in op._schema.arguments if s.alias_info is not None and s.alias_info.is_write}
    for name, t in tensors.items():
        if name not in written:
            assert_same_bytes(t, before[name], f"{op} {name}")
    owned = {t.untyped_storage().data_ptr() for t in tensors.values() if t.numel()}
    returned = [t.untyped_storage().data_ptr() for t in results if t.numel()]
    assert len(set(returned)) == len(returned) and not owned & set(returned), f"{op}: outputs alias"


@pytest.mark.parametrize("op", OUTPUTS)
def test_opcheck(backend, op):
    calls = [args for name, args in op_calls() if name == op]
    assert calls
    overload = getattr(backend.ops, op).default
    for args in calls:
        args = moved(args, backend.device)
        schema_holds(overload, args)
        # opcheck's own schema test multiplies its inputs, which torch cannot do in FP8.
        takes_fp8 = any(a.dtype in FP8_MAX for a in tensors_in(args))
        left_out = {"test_schema"} if takes_fp8 else set()
        opcheck(overload, args, test_utils=sorted(set(OPCHECKS) - left_out))


# --- wrong arguments ------------------------------------------------------------------------------

DOUBLES, E5M2_PAIR = torch.zeros(6, dtype=torch.float64), (A.view(torch.uint8).view(E5M2),) * 2
# Of a GEMM the fakes check formats, dtypes and K.
WRONG_GEMM = [
    (dict(a=A.float()), "a", "float8_e4m3fn", "float32"),
    (dict(b=B.float()), "b", "float8_e5m2", "float32"),
    (dict(zip("ab", E5M2_PAIR)), "b", "float8_e4m3fn", "float8_e5m2"),
    (dict(a=A[0, 0]), "a", "dimension", "()"),
    (dict(b=B[0]), "b", "[N, K]", "(32,)"),
    (dict(b=B[:, :16]), "b", "columns", "a with 32 and b with 16"),
    (dict(a=A[:, :17], b=B[:, :31]), "b", "multiple of 16", "a with 17 and b with 31"),
    (dict(bias=DOUBLES), "bias", "float32", "float64"),
    (dict(epilogue="gelu"), "epilogue", "gelu_tanh", "got gelu"),
]
WRONG_FOR_FAKES = [
    *[case for case in WRONG if not case[0].startswith("gemm")],
    *[("gemm", gemm_args(**changes), *rest) for changes, *rest in WRONG_GEMM],
    *[("gemm_out", out_args(**changes), *rest) for changes, *rest in WRONG_GEMM],
    *[("gemm_fp8", fp8_args(**changes), *rest) for changes, *rest in WRONG_GEMM],
    ("gemm", gemm_args(out_dtype=E4M3), "out_dtype", "bfloat16", "float8_e4m3fn"),
    ("gemm", gemm_args(epilogue="dgelu", aux=A), "aux", "bfloat16", "float8_e4m3fn"),
    ("gemm_out", out_args(out=DOUBLES), "out", "bfloat16", "float64"),
    ("gemm_out", out_args(epilogue="gelu_tanh", aux_out=DOUBLES), "aux_out", "float16", "float64"),
    ("gemm_fp8", fp8_args(dtype=BF16), "dtype", "float8_e5m2", "bfloat16"),
]


@pytest.mark.parametrize("case", WRONG_FOR_FAKES, ids=lambda case: f"{case[0]}-{case[2]}-{case[4]}")
def test_meta_tensors_are_refused_as_others_are(case):
    op, args, *_ = case
    args = dict(zip(args, moved(list(args.values()), torch.device("meta"))))
    with pytest.raises(ValueError) as error:
        getattr(torch.ops.transcast, op)(**args)
    check_message(str(error.value), case)


@pytest.mark.parametrize("k, other", [(17, 17), (17, 32), (32, 17), (16, 16), (0, 0), (1, 16)])
def test_meta_operands_share_k_or_one_has_it_padded(k, other):
    a, b = torch.empty(5, k, device="meta").to(E4M3), torch.empty(6, other, device="meta").to(E4M3)
    scale = torch.empty((), device="meta")
    y = torch.ops.transcast.gemm(a, b, scale, scale, None, "none", None, BF16, False)
    assert y.shape == (5, 6) and y.dtype == BF16


@pytest.mark.parametrize(
    "function, shapes, words",
    [
        (lambda ops, x: ops.act_quantize(x, E4M3, "swiglu"), [(5, 7)], "x must hold [gate | up]"),
        (lambda ops, x, up: ops.act_quantize(x, E4M3, "swiglu", up), [(5, 6), (4, 6)], "up must have"),
        (lambda ops, x: ops.quantize(x.double(), E4M3), [(5, 7)], "x must be float32, bfloat16 or float16"),
    ],
    ids=["odd", "up", "dtype"],
)
def test_symbolic_sizes_are_refused_while_tracing(backend, function, shapes, words):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *args: function(backend.ops, *args), backend="eager", fullgraph=True, dynamic=True
    )
    with pytest.raises(RuntimeError) as error:
        compiled(*(normal(shape, F32).to(backend.device) for shape in shapes))
    assert "fake tensor" in str(error.value) and words in str(error.value)


# --- graph counts ---------------------------------------------------------------------------------

TOKENS = [5, 17, 33, 16, 2, 128]


def training_step(ops, x, weight, grad):
    """A linear layer's forward and backward in raw ops: every GEMM has the tokens in another place."""
    x8, x_inv, x8_t, x_inv_t = ops.quantize_transpose(x, E4M3)
    w8, w_inv, w8_t, w_inv_t = ops.quantize_transpose(weight, E4M3)
    g8, g_inv, g8_t, g_inv_t, dbias = ops.quantize_transpose_dbias(grad, E5M2)
    y = ops.gemm(x8, w8, x_inv, w_inv, None, "none", None, BF16, True)
    dgrad = ops.gemm(g8, w8_t, g_inv, w_inv_t, None, "none", None, BF16, False)
    wgrad = ops.gemm(g8_t, x8_t, g_inv_t, x_inv_t, None, "none", None, F32, False)
    return y, dgrad, wgrad, dbias


def given_scales(ops, x, weight, grad):
    scale = torch.ones((), device=x.device)
    x8, x_inv, x8_t, amax = ops.cast_transpose(x, scale, E4M3)
    w8, w_inv, _ = ops.cast(weight, scale, E4M3)
    g8, g_inv, g8_t, dbias, _ = ops.cast_transpose_dbias(grad, scale, E5M2)
    q, q_inv, q_amax = ops.gemm_fp8(x8, w8, x_inv, w_inv, scale, None, "relu", E4M3, False, None)
    wide = ops.dequantize(q, q_inv, BF16)
    wgrad = torch.zeros(weight.shape, device=x.device)
    ops.gemm_out(g8_t, ops.transpose(x8), g_inv, x_inv, None, "none", None, False, True, wgrad, None)
    return wide, wgrad, dbias, amax, q_amax, x8_t, g8, ops.amax(wide)


def gated_step(ops, x, weight, grad):
    """Activations and their gradients, [gate | up] and apart, and weights in a list."""
    scale = torch.ones((), device=x.device)
    h8, h_inv, h8_t, amax = ops.act_cast_transpose(x, scale, E4M3, "swiglu", None)
    a8, _ = ops.act_quantize(grad, E4M3, "swiglu", grad)
    b8, _, b8_t, _ = ops.act_quantize_transpose(x, E4M3, "gelu_tanh", None)
    g8, _, g8_t, dbias, _ = ops.dact_cast_transpose_dbias(x[:, :20], x, scale, E5M2, "swiglu", None)
    d8, _, d8_t, _, sums = ops.dact_quantize_transpose_dbias(grad, grad, E5M2, "silu", None)
    lists = ops.multi_quantize_transpose([weight, x, grad], E4M3)
    return h8, h_inv, h8_t, amax, a8, b8, b8_t, g8, g8_t, dbias, d8, d8_t, sums, *tensors_in(lists)


def inputs(tokens: int, device: torch.device):
    made = normal((tokens, 40), BF16, 1), normal((24, 40), F32, 2), normal((tokens, 24), BF16, 3)
    return [t.to(device) for t in made]


@pytest.mark.parametrize("function", [training_step, given_scales, gated_step])
@pytest.mark.parametrize("dynamic", ["all_sizes", "tokens"])
def test_one_graph_for_all_token_counts(backend, function, dynamic):
    torch._dynamo.reset()
    counter = CompileCounter()
    sizes = True if dynamic == "all_sizes" else None
    compiled = torch.compile(
        lambda *a: function(backend.ops, *a), backend=counter, fullgraph=True, dynamic=sizes
    )
    for tokens in TOKENS:
        x, weight, grad = inputs(tokens, backend.device)
        if dynamic == "tokens":
            torch._dynamo.mark_dynamic(x, 0, min=2, max=4096)
            torch._dynamo.mark_dynamic(grad, 0, min=2, max=4096)
        for got, want in zip(compiled(x, weight, grad), function(backend.ops, x, weight, grad)):
            assert_same_bytes(got, want, f"compiled with {tokens} tokens")
    assert counter.frame_count == 1
    for tokens in (1, 0):  # sizes that torch specialises: one graph each
        args = inputs(tokens, backend.device)
        for got, want in zip(compiled(*args), function(backend.ops, *args)):
            assert_same_bytes(got, want, f"compiled with {tokens} tokens")
    assert counter.frame_count <= 3


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
@pytest.mark.parametrize("function", [training_step, gated_step])
def test_token_counts_that_only_the_data_tells(backend, function):
    """The tokens of one expert, chosen twice: the graph has two sizes for them, and no value of either."""
    torch._dynamo.reset()

    def of_one_expert(chosen, x, weight, grad):
        return function(backend.ops, x[chosen], weight, grad[chosen.flip(0)])

    counter = CompileCounter()
    compiled = torch.compile(of_one_expert, backend=counter, fullgraph=True)
    x, weight, grad = inputs(33, backend.device)
    for first in (20, 3):
        args = torch.arange(33, device=backend.device) >= first, x, weight, grad
        for got, want in zip(compiled(*args), of_one_expert(*args)):
            assert_same_bytes(got, want, f"compiled, tokens from {first}")
    assert counter.frame_count == 1


def test_exported_program_takes_other_token_counts(backend):
    class Step(torch.nn.Module):
        def forward(self, x, weight):
            x8, x_inv = backend.ops.quantize(x, E4M3)
            w8, w_inv = backend.ops.quantize(weight, E4M3)
            return backend.ops.gemm(x8, w8, x_inv, w_inv, None, "none", None, BF16, False)

    x, weight, _ = inputs(17, backend.device)
    tokens = torch.export.Dim("tokens", min=2, max=4096)
    program = torch.export.export(Step(), (x, weight), dynamic_shapes=({0: tokens}, None))
    x, weight, _ = inputs(33, backend.device)
    assert_same_bytes(program.module()(x, weight), Step()(x, weight), "exported")
