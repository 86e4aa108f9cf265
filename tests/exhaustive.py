"""All 2^32 FP32 patterns through cast, both formats, two scales, against the reference: `make exhaustive`."""

from __future__ import annotations

import argparse
import sys
import time

import torch

import transcast  # noqa: F401  registers torch.ops.transcast
from transcast import reference

FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
SCALES = (1.0, 1.7)
CHUNK = 1 << 21  # patterns held at once: their temporaries stay in the caches


def check(bits: torch.Tensor, scale: float, fmt: str) -> None:
    """Ends the run at the first pattern whose byte differs."""
    x, factor = bits.view(torch.float32), torch.tensor(scale)
    got = torch.ops.transcast.cast(x, factor, FORMATS[fmt])[0].view(torch.uint8)
    want = reference.cast(x, factor, FORMATS[fmt])[0].view(torch.uint8)
    if not torch.equal(got, want):
        i = int((got != want).nonzero()[0])
        pattern = bits[i].item() & 0xFFFFFFFF
        sys.exit(
            f"0x{pattern:08x} ({x[i].item()}) * {scale} to {fmt}: "
            f"got 0x{got[i]:02x}, expected 0x{want[i]:02x}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--patterns", type=lambda text: int(text, 0), default=1 << 32, help="how many, from 0 on"
    )
    total = parser.parse_args().patterns
    started = time.monotonic()
    offsets = torch.arange(CHUNK, dtype=torch.int32)
    for first in range(0, total, CHUNK):
        # Patterns from 2^31 on are negative as int32.
        bits = offsets[: total - first] + (first if first < 1 << 31 else first - (1 << 32))
        for fmt in FORMATS:
            for scale in SCALES:
                check(bits, scale, fmt)
        done = min(first + CHUNK, total)
        if done % (1 << 28) == 0 or done == total:
            print(f"{100 * done / total:5.1f}%  {time.monotonic() - started:6.0f} s", flush=True)
    formats, scales = " and ".join(FORMATS), " and ".join(map(str, SCALES))
    print(f"exhaustive: {total} patterns x {formats} x scales {scales} equal")


if __name__ == "__main__":
    main()
