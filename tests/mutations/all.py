"""Every mutation there is."""

from __future__ import annotations

from mutations import Mutation, bounds, found, indices, launches, movement, order, values

ALL: list[Mutation] = [
    *found.all_found(),
    *order.REDUCTIONS,
    *order.ATOMICS,
    *order.ENDS,
    *bounds.ROWS_AND_COLUMNS,
    *bounds.PADDING,
    *bounds.UNALIGNED,
    *indices.INDICES,
    *values.ROUNDING,
    *values.AMAX,
    *values.SCALES,
    *values.ACTIVATION,
    *values.SUMS,
    *launches.STREAMS,
    *launches.SIZES,
    *launches.AGAIN,
    *launches.ERRORS,
    *launches.ARGUMENTS,
    *movement.PLACES,
    *movement.COSTS,
]
