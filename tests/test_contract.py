"""The house rules: who may know whom, one name per op everywhere, and a README that tells the truth."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from pathlib import Path

import pytest
import torch

import transcast as tc
from cases import OUTPUTS
from transcast import _fakes, ops, reference

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
README = (ROOT / "README.md").read_text()
PUBLIC_OPS = [op for op in OUTPUTS if op != "gemm_out"]  # gemm_out is gemm's in-place twin, underneath

# Which of our folders, and whether torch, the files of a room may include. Everything may include std.
ROOMS = {
    "core": {"core"},
    "backend.h": {"core"},
    "cpu": {"backend.h", "core", "cpu"},
    "cuda": {"backend.h", "core", "cuda"},
    "ops": {"backend.h", "core", "ops", "torch"},
    "module.cpp": {"cpu", "cuda", "pybind11"},
}


def room_of(path: str) -> str:
    return path.split("/")[0]


@pytest.mark.parametrize("room", ROOMS)
def test_includes(room: str) -> None:
    files = sorted(CSRC.glob(f"{room}/*")) if (CSRC / room).is_dir() else [CSRC / room]
    assert files
    for file in files:
        for quoted, angled in re.findall(r'^#include (?:"(.+?)"|<(.+?)>)', file.read_text(), re.M):
            if quoted:
                assert room_of(quoted) in ROOMS[room], f"{file.name} may not include {quoted}"
                assert (CSRC / quoted).is_file(), f"{file.name}: includes are written from csrc/: {quoted}"
            elif room_of(angled) in ("torch", "pybind11", "ATen", "c10"):
                assert room_of(angled) in ROOMS[room], f"{file.name} may not include <{angled}>"


def test_torch_only_through_the_stable_abi() -> None:
    for file in (CSRC / "ops").iterdir():
        for header in re.findall(r"^#include <(torch/.+?)>", file.read_text(), re.M):
            assert header.startswith("torch/csrc/stable/"), f"{file.name} includes <{header}>"


# What dereferences a wrapped pointer: *p.address, p.address[i], p.address->field, but not &p.address->field.
POINTER = r"(?:\w+(?:\.\w+|\[\w+\])*|\([^()]*\))\.address"
STAR = r"(?:^|[-=(,;{!&|?:<>+*]|return)\s*\*\s*"
DEREFERENCES = re.compile(rf"{STAR}{POINTER}\b|(?<![&\w.)\]]){POINTER}(?:->|\[)", re.M)


@pytest.mark.parametrize(
    "code, wrong",
    [
        ("  *p.address = 1;", True),
        ("return *args.source.operand[0].data.address;", True),
        ("x = a + *(p + 1).address;", True),
        ("y = p.address[3];", True),
        ("y = slot.address->scale;", True),
        ("f((slots + i).address->scale)", True),
        ("{&slot.address->scale}", False),
        ("{&(jobs.slots + index).address->scale}", False),
        ("if (at.address >= x.data.address && at.address + 16 <= x.end.address)", False),
        ("n * uintptr_t(p.address)", False),
    ],
)
def test_dereferences_are_told_from_other_uses(code: str, wrong: bool) -> None:
    assert bool(DEREFERENCES.search(code)) == wrong


def test_kernels_reach_global_memory_through_vec_cuh_alone() -> None:
    files = [*(CSRC / "cuda").glob("*.cu"), *(CSRC / "cuda").glob("*.cuh")]
    files.remove(CSRC / "cuda/vec.cuh")
    assert any(".address" in path.read_text() for path in files)
    for path in files:
        found = DEREFERENCES.search(path.read_text())
        assert not found, f"{path.name}: {found[0]}"


# What a module may import of ours; of others only torch and these parts of Python.
KNOWN = {
    "ops.py": {"._act_ops", "._checks", "._results"},
    "_act_ops.py": {"._checks", "._results"},
    "_checks.py": set(),
    "_results.py": set(),
    "reference.py": {"._reference_act", "._reference_gemm", "._reference_scale"},
    "_reference_act.py": set(),
    "_reference_gemm.py": set(),
    "_reference_scale.py": set(),
}


@pytest.mark.parametrize("module", KNOWN)
def test_module_knows_torch_only(module: str) -> None:
    tree = ast.parse((ROOT / "python/transcast" / module).read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    others = {name.split(".")[0] for name in names - KNOWN[module]}
    assert others <= {"torch", "math", "typing", "__future__"}, names


@pytest.mark.parametrize("op", OUTPUTS)
def test_one_op_one_name(op: str) -> None:
    schema = getattr(torch.ops.transcast, op).default._schema
    assert [f.__name__ for f in _fakes.FAKES].count(op) == 1
    arguments = [argument.name for argument in schema.arguments]
    for twin in (getattr(reference, op), getattr(_fakes, op)):
        assert list(inspect.signature(twin).parameters) == arguments
    returns = [value.name for value in schema.returns]
    if len(returns) > 1:
        assert tuple(returns) == OUTPUTS[op]


@pytest.mark.parametrize("op", PUBLIC_OPS)
def test_public_op(op: str) -> None:
    function = getattr(tc, op)
    assert function is getattr(ops, op) and op in tc.__all__
    assert len(inspect.getdoc(function)) > 60
    returned = inspect.get_annotations(function)["return"]
    (returned,) = typing.get_args(returned) or (returned,)  # list[QuantizedTranspose]
    if len(OUTPUTS[op]) > 1:
        assert returned._fields == OUTPUTS[op]


def test_readme_lists_every_op_with_its_arguments_and_results() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \|", README, re.M)
    rows = [row for row in rows if row[0] in OUTPUTS]
    assert [op for op, _, _ in rows] == PUBLIC_OPS
    for op, arguments, results in rows:
        parameters = inspect.signature(getattr(ops, op)).parameters.values()
        by_keyword = {one.name for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
        positional, _, behind = arguments.partition(", *, ")
        assert positional.split(", ") == [one.name for one in parameters if one.name not in by_keyword], op
        assert set(filter(None, behind.split(", "))) == by_keyword, op
        assert tuple(results.split(", ")) == OUTPUTS[op], op


def test_readme_converts_a_model() -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.S)[0]
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3))
    names = {"model": model, "x": torch.randn(5, 8), "y": torch.randn(5, 3), "loss_fn": torch.nn.MSELoss()}
    exec(code, names)
    assert all(isinstance(layer, tc.FP8Linear) for layer in model)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_readme_autograd_function_has_the_gradients_of_linear() -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.S)[1]
    names = {"torch": torch, "tc": tc}
    exec(code, names)
    torch.manual_seed(0)
    x, w = torch.randn(17, 33, dtype=torch.bfloat16), torch.randn(24, 33, dtype=torch.bfloat16)
    ours, theirs = ([t.clone().requires_grad_() for t in (x, w)] for _ in range(2))
    y, expected = names["ScaledMatmul"].apply(*ours), tc.linear(*theirs)
    assert torch.equal(y, expected)
    g = torch.randn_like(y)
    y.backward(g)
    expected.backward(g)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs))


def test_readme_table_of_the_house_names_what_is_there() -> None:
    house = README.split("## The house")[1]
    for path in re.findall(r"^([\w/.]+/|[\w/]+\.\w+)(?= )", house, re.M):
        assert (ROOT / path).exists(), path
