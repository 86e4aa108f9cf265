"""The examples run as a user would run them: as scripts, from their command line."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN_LM = Path(__file__).parent.parent / "examples" / "train_lm.py"
TINY = ["--size", "tiny", "--steps", "25", "--batch", "4", "--seq", "32", "--lr", "0.005"]
NAMES = ("total", "count", "value", "line", "name", "self.path", "result", "index")


@pytest.fixture(scope="module")
def text_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    chance = random.Random(0)
    for i in range(20):
        lines = ("{} = {} + {}\n".format(*chance.choices(NAMES, k=3)) for _ in range(100))
        (folder / f"part_{i:02}.py").write_text("".join(lines))
    (folder / "tests").mkdir()
    (folder / "tests" / "left_out.py").write_text("never read\n" * 1000)
    (folder / "picture.png").write_bytes(b"\0" * 1000)
    return folder


def run_train_lm(*arguments: object, hide: str = "") -> subprocess.CompletedProcess:
    """`hide` is the name of a module that the script is not to find."""
    script = [str(TRAIN_LM)]
    if hide:
        code = f"import sys, runpy; sys.modules[{hide!r}] = None; "
        script = ["-c", code + "runpy.run_path(sys.argv.pop(1), None, '__main__')", *script]
    command = [sys.executable, *script, *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # so small a model gains nothing from threads
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


@pytest.fixture(scope="module")
def tiny_run(text_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    picture = tmp_path_factory.mktemp("out") / "curves.png"
    run = run_train_lm(*TINY, "--text", text_folder, "--out", picture)
    assert run.returncode == 0, run.stderr
    return run, picture


def row(output: str, name: str) -> tuple[float, float, float]:
    """nn.Linear, FP8 and difference in percent from a row of the table."""
    number = r"\s+([+-]?[\d,.]+)"
    found = re.search(rf"^{re.escape(name)}{number * 3}%$", output, re.MULTILINE)
    assert found, f"no row {name!r} in:\n{output}"
    return tuple(float(value.replace(",", "")) for value in found.groups())


def test_train_lm_learns_with_fp8_as_without(tiny_run):
    output = tiny_run[0].stdout
    for name in ("training loss, last tenth", "validation loss"):
        base, fp8, difference = row(output, name)
        assert base < 2.0, "a model that has learned nothing has ln(256) = 5.5"
        assert fp8 == pytest.approx(base, rel=0.03)
        assert fp8 != base, "FP8Linear did not run"
        assert difference == pytest.approx(100 * (fp8 / base - 1), abs=0.02)  # of numbers rounded to 1e-4


def test_train_lm_measures(tiny_run):
    output = tiny_run[0].stdout
    base_speed, fp8_speed, _ = row(output, "tokens/s")
    assert base_speed > 0 and fp8_speed > 0
    base_saved, fp8_saved, _ = row(output, "MiB saved for backward")
    assert fp8_saved < base_saved


def test_train_lm_counts_weights_to_the_byte(tiny_run):
    output = tiny_run[0].stdout
    dim, hidden, layers = 64, 160, 2
    linear = layers * (4 * dim * dim + 3 * dim * hidden)
    other = 2 * 256 * dim + (2 * layers + 1) * dim  # embedding, lm_head, norms
    scales = 4 * layers  # one FP32 number per linear layer
    trained = 4 * (linear + other) / 2**20
    assert row(output, "MiB of weights, training")[:2] == pytest.approx((trained, trained), abs=0.006)
    expected = (linear + 4 * other + 4 * scales) / 2**20
    assert row(output, "MiB of weights, inference")[:2] == pytest.approx((trained, expected), abs=0.006)


def test_train_lm_draws_curves_and_writes_text(tiny_run):
    run, picture = tiny_run
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert str(picture) in run.stdout
    assert "25/25" in run.stderr, "no progress bar"
    sample = run.stdout.split("written by the FP8 model")[1]
    assert "import os\n\n\ndef " in sample and " = " in sample, sample


def test_train_lm_is_reproducible_and_needs_no_tqdm(tiny_run, text_folder, tmp_path):
    again = run_train_lm(*TINY, "--text", text_folder, "--out", tmp_path / "again.png", hide="tqdm")
    assert again.returncode == 0, again.stderr
    assert "#] 25/25 loss" in again.stderr
    for name in ("validation loss", "MiB saved for backward"):
        assert row(again.stdout, name) == row(tiny_run[0].stdout, name)


def test_train_lm_under_autocast(text_folder, tmp_path):
    options = ("--steps", 5, "--dtype", "bf16", "--size", "32x1x2")
    run = run_train_lm(*TINY, *options, "--text", text_folder, "--out", tmp_path / "bf16.png")
    assert run.returncode == 0, run.stderr
    base, fp8, _ = row(run.stdout, "validation loss")
    assert fp8 == pytest.approx(base, rel=0.03)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--recipe", "nosuch"], "nosuch"),
        (["--size", "30x1x4"], "dim 30 is not an even multiple of heads 4"),
        (["--seq", "100000"], "more than --seq 100000"),
    ],
)
def test_train_lm_refuses(arguments, message, text_folder, tmp_path):
    run = run_train_lm(*TINY, "--text", text_folder, "--out", tmp_path / "no.png", *arguments)
    assert run.returncode != 0
    assert message in run.stderr
    assert not list(tmp_path.iterdir())
