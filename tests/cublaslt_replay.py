"""What the stand-in for cuBLASLt was given, given to the real library, which needs no GPU for that.

The real library checks the numbers and the sizes of attributes, so what it takes and gives back is what the
stand-in has to take. Whether a value makes sense it says only on a GPU.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

Attributes = dict[int, tuple[int, bytes]]  # number: size, value

# Numbers of the header: by these values an object is created, all others are set.
COMPUTE_TYPE, SCALE_TYPE = 0, 1
LAYOUT_TYPE, LAYOUT_ROWS, LAYOUT_COLUMNS, LAYOUT_LEADING = 0, 2, 3, 4


@functools.cache
def library() -> ctypes.CDLL | None:
    """cuBLASLt as it comes with torch's CUDA wheels, or None."""
    if torch.version.cuda is None:
        return None
    try:
        found = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.split('.')[0]}")
    except OSError:
        return None
    found.cublasLtGetVersion.restype = ctypes.c_size_t
    return found


class RealObject:
    """A descriptor, a layout or a preference of the real library."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        self.kind, self.handle = kind, ctypes.c_void_p()
        status = self._call("Create", ctypes.byref(self.handle), *arguments)
        assert status == 0, f"{kind}: creation gives status {status}"

    def _call(self, action: str, *arguments: Any) -> int:
        return getattr(library(), f"cublasLt{self.kind}{action}")(*arguments)

    def set(self, number: int, value: bytes) -> int:
        """The status."""
        return self._call("SetAttribute", self.handle, number, value, ctypes.c_size_t(len(value)))

    def get(self, number: int, size: int) -> bytes:
        value, written = ctypes.create_string_buffer(size), ctypes.c_size_t()
        status = self._call(
            "GetAttribute", self.handle, number, value, ctypes.c_size_t(size), ctypes.byref(written)
        )
        assert (status, written.value) == (0, size), f"{self.kind} {number}: {status}, {written.value} bytes"
        return value.raw

    def replay(self, attributes: Attributes) -> None:
        """Sets each attribute and reads it back."""
        for number, (size, value) in attributes.items():
            status = self.set(number, value)
            assert status == 0, f"{self.kind}: setting {number} to {value.hex()} gives status {status}"
            assert self.get(number, size) == value, f"{self.kind}: {number} does not keep {value.hex()}"

    def __enter__(self) -> RealObject:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._call("Destroy", self.handle) == 0


def number_in(attributes: Attributes, number: int) -> int:
    return int.from_bytes(attributes[number][1], "little", signed=True)


def descriptor(attributes: Attributes) -> RealObject:
    return RealObject("MatmulDesc", *(number_in(attributes, n) for n in (COMPUTE_TYPE, SCALE_TYPE)))


def layout(attributes: Attributes) -> RealObject:
    rows, columns, leading = (number_in(attributes, n) for n in (LAYOUT_ROWS, LAYOUT_COLUMNS, LAYOUT_LEADING))
    return RealObject(
        "MatrixLayout",
        number_in(attributes, LAYOUT_TYPE),
        ctypes.c_uint64(rows),
        ctypes.c_uint64(columns),
        ctypes.c_int64(leading),
    )


def replay(record: list[dict[str, Any]]) -> int:
    """Every recorded question's objects on the real library; how many questions there were."""
    for question in record:
        with descriptor(question["descriptor"]) as real:
            real.replay(question["descriptor"])
        for attributes in question["layouts"]:
            with layout(attributes) as real:
                created = {number: real.get(number, size) for number, (size, _) in attributes.items()}
                assert created == {number: value for number, (_, value) in attributes.items()}
                real.replay(attributes)
        with RealObject("MatmulPreference") as real:
            real.replay(question["preference"])
    return len(record)
