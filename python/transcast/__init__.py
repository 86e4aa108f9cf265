"""transcast: FP8 for PyTorch that is fast in plain eager mode.

Raw ops: ``cast``, ``quantize``, their transposing and activating forms, ``gemm`` and relatives
(``transcast.ops``). Layers: ``FP8Linear``, ``convert``, ``linear``.
``info()`` says what was built and what can run here.
"""

from . import _library  # first: it loads the compiled ops
from . import _fakes, _no_cuda  # noqa: F401  they register themselves
from . import recipes
from ._info import gemm_plans, gemm_support, info
from ._weight_cache import cached_weights
from .convert import ConvertReport, convert, quantize_weights_, set_recipe
from .linear import FP8Linear, linear
from .ops import (
    E4M3,
    E5M2,
    act_cast,
    act_cast_transpose,
    act_quantize,
    act_quantize_transpose,
    amax,
    cast,
    cast_transpose,
    cast_transpose_dbias,
    dact_cast_transpose_dbias,
    dact_quantize_transpose_dbias,
    dequantize,
    gemm,
    gemm_fp8,
    multi_quantize_transpose,
    quantize,
    quantize_transpose,
    quantize_transpose_dbias,
    transpose,
)
from .recipes import Tensorwise

__version__ = _library.version

__all__ = [
    "E4M3",
    "E5M2",
    "ConvertReport",
    "FP8Linear",
    "Tensorwise",
    "act_cast",
    "act_cast_transpose",
    "act_quantize",
    "act_quantize_transpose",
    "amax",
    "cached_weights",
    "cast",
    "cast_transpose",
    "cast_transpose_dbias",
    "convert",
    "dact_cast_transpose_dbias",
    "dact_quantize_transpose_dbias",
    "dequantize",
    "gemm",
    "gemm_fp8",
    "gemm_plans",
    "gemm_support",
    "info",
    "linear",
    "multi_quantize_transpose",
    "quantize",
    "quantize_transpose",
    "quantize_transpose_dbias",
    "quantize_weights_",
    "recipes",
    "set_recipe",
    "transpose",
]
