"""cuBLASLt through ctypes: as much of it as the probe needs."""

from __future__ import annotations

import ctypes as C
import glob
import os
import sys
from dataclasses import dataclass, field

from lt_query import BYTES, EPILOGUES, SCALES, TYPES, Pointers, Query

# Numbers of cublasLt.h.
COMPUTE_32F, REAL_32F = 68, 0
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 3, 4, 7, 8, 11, 12
A_SCALE, B_SCALE, D_SCALE, AMAX_D, AUX_TYPE, AUX_SCALE, FAST_ACCUM, BIAS_TYPE = 17, 18, 20, 21, 22, 23, 25, 26
A_MODE, B_MODE, D_OUT_SCALE, D_OUT_MODE = 31, 32, 36, 37
MAX_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)
CANDIDATES = 8


class Result(C.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = [("algo", C.c_uint64 * 8), ("workspace", C.c_size_t), ("state", C.c_int)]
    _fields_ += [("waves", C.c_float), ("reserved", C.c_int * 4)]


@dataclass
class Answer:
    status: str
    results: list[Result] = field(default_factory=list)


def find_library() -> str:
    folders = [os.path.join(p, "nvidia", s, "lib") for p in sys.path if p for s in ("cu13", "cublas")]
    folders += ["/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib"]
    found = [path for folder in folders for path in sorted(glob.glob(f"{folder}/libcublasLt.so.*"))]
    return found[0] if found else "libcublasLt.so.13"


class Product:
    """A query's descriptor, layouts and preference; a context manager, which destroys them."""

    def __init__(self, lt: CublasLt, query: Query, pointers: Pointers) -> None:
        self.lt, self.query, self.pointers = lt, query, pointers

    def __enter__(self) -> Product:
        lib, q = self.lt.library, self.query
        self.descriptor, self.preference = C.c_void_p(), C.c_void_p()
        self.layouts: list[C.c_void_p] = []
        self.lt.check(
            lib.cublasLtMatmulDescCreate(C.byref(self.descriptor), COMPUTE_32F, REAL_32F), "descriptor"
        )
        self._describe()
        ta, tb = (letter == "T" for letter in q.trans)
        self._layout(q.a, *((q.k, q.m) if ta else (q.m, q.k)))
        self._layout(q.b, *((q.n, q.k) if tb else (q.k, q.n)))
        self._layout(q.c_type, q.m, q.n)
        self._layout(q.d, q.m, q.n)
        self.lt.check(lib.cublasLtMatmulPreferenceCreate(C.byref(self.preference)), "preference")
        for attribute, value in [(MAX_WORKSPACE, C.c_uint64(q.ws))] + [
            (n, C.c_uint32(q.align)) for n in ALIGNMENTS
        ]:
            size = C.c_size_t(C.sizeof(value))
            status = lib.cublasLtMatmulPreferenceSetAttribute(
                self.preference, attribute, C.byref(value), size
            )
            self.lt.check(status, f"preference {attribute}")
        return self

    def __exit__(self, *_: object) -> None:
        for layout in self.layouts:
            self.lt.library.cublasLtMatrixLayoutDestroy(layout)
        self.lt.library.cublasLtMatmulPreferenceDestroy(self.preference)
        self.lt.library.cublasLtMatmulDescDestroy(self.descriptor)

    def _set(self, attribute: int, value: int, kind: type) -> None:
        """Sets an attribute and reads it back, which proves its number and size right."""
        lib, given, got, written = self.lt.library, kind(value), kind(), C.c_size_t()
        size = C.c_size_t(C.sizeof(given))
        status = lib.cublasLtMatmulDescSetAttribute(self.descriptor, attribute, C.byref(given), size)
        self.lt.check(status, f"setting attribute {attribute}")
        status = lib.cublasLtMatmulDescGetAttribute(
            self.descriptor, attribute, C.byref(got), size, C.byref(written)
        )
        self.lt.check(status, f"reading attribute {attribute}")
        if (got.value or 0) != value or written.value != C.sizeof(given):
            raise RuntimeError(f"attribute {attribute}: {value} was set, {got.value} came back")

    def _describe(self) -> None:
        q, p, i32, u64 = self.query, self.pointers, C.c_int32, C.c_uint64
        for attribute, letter in zip((TRANSA, TRANSB), q.trans, strict=True):
            self._set(attribute, int(letter == "T"), i32)
        self._set(FAST_ACCUM, q.fast, C.c_int8)
        self._set(A_MODE, SCALES[q.sa], i32)
        self._set(B_MODE, SCALES[q.sb], i32)
        self._set(A_SCALE, p.a_scale, u64)
        self._set(B_SCALE, p.b_scale, u64)
        self._set(EPILOGUE, EPILOGUES[q.epi], C.c_uint32)
        if q.has_bias:
            self._set(BIAS_POINTER, p.bias + q.bias_align % 256, u64)
            if q.bias:
                self._set(BIAS_TYPE, TYPES[q.bias], i32)
        if q.has_aux:
            self._set(AUX_POINTER, p.aux, u64)
            self._set(AUX_LD, q.aux_stride, C.c_int64)
            if q.aux:
                self._set(AUX_TYPE, TYPES[q.aux], i32)
                if BYTES[q.aux] == 1:
                    self._set(AUX_SCALE, p.d_scale, u64)
        if q.dscale:
            self._set(D_SCALE, p.d_scale, u64)
        if q.dout:
            self._set(D_OUT_SCALE, p.d_scale, u64)
            self._set(D_OUT_MODE, SCALES["vec32_ue8m0"], i32)
        if q.amax:
            self._set(AMAX_D, p.amax, u64)

    def _layout(self, type_: str, rows: int, columns: int) -> None:
        layout = C.c_void_p()
        sizes = C.c_uint64(rows), C.c_uint64(columns), C.c_int64(rows)
        status = self.lt.library.cublasLtMatrixLayoutCreate(C.byref(layout), TYPES[type_], *sizes)
        self.lt.check(status, "layout")
        self.layouts.append(layout)

    def ask(self) -> Answer:
        results, count = (Result * CANDIDATES)(), C.c_int()
        call = self.lt.library.cublasLtMatmulAlgoGetHeuristic
        status = call(
            self.lt.handle,
            self.descriptor,
            *self.layouts,
            self.preference,
            CANDIDATES,
            results,
            C.byref(count),
        )
        good = [r for r in results[: count.value] if r.state == 0] if status == 0 else []
        return Answer(self.lt.name_of(status), good)

    def run(
        self, result: Result, a: int, b: int, c: int, d: int, beta: float, workspace: int, stream: int
    ) -> str:
        """One product with addresses of real memory; the status's name."""
        one, factor = C.c_float(1.0), C.c_float(beta)
        left, right, added, out = self.layouts
        status = self.lt.library.cublasLtMatmul(
            *(self.lt.handle, self.descriptor, C.byref(one), C.c_void_p(a), left, C.c_void_p(b), right),
            *(C.byref(factor), C.c_void_p(c), added, C.c_void_p(d), out, C.byref(result.algo)),
            *(C.c_void_p(workspace), C.c_size_t(result.workspace), C.c_void_p(stream)),
        )
        return self.lt.name_of(status)


class CublasLt:
    """The loaded library, and a handle unless ``dry``: a handle needs a GPU."""

    def __init__(self, path: str, dry: bool) -> None:
        self.path, self.handle = path, C.c_void_p()
        self.library = C.CDLL(path)
        self.library.cublasLtGetVersion.restype = C.c_size_t
        self.library.cublasLtGetStatusName.restype = C.c_char_p
        if not dry:
            self.check(self.library.cublasLtCreate(C.byref(self.handle)), "cublasLtCreate")

    @property
    def version(self) -> int:
        return self.library.cublasLtGetVersion()

    def name_of(self, status: int) -> str:
        return self.library.cublasLtGetStatusName(status).decode().removeprefix("CUBLAS_STATUS_")

    def check(self, status: int, what: str) -> None:
        if status:
            raise RuntimeError(f"cuBLASLt: {what} failed with {self.name_of(status)}")

    def product(self, query: Query, pointers: Pointers | None = None) -> Product:
        return Product(self, query, pointers or Pointers())
