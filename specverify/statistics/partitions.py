# SPDX-License-Identifier: Apache-2.0
"""Cut a large vocabulary into few cells on which known kinds of bias show.

A test over all of a large vocabulary needs draws in proportion to the square root of its
size. Cells are chosen from p and q alone, never from what was drawn, so the test stays
valid.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def totals(cells: IntArray, weights: FloatArray) -> FloatArray:
    """Sum the weights in each cell: float64, one entry a cell."""
    return np.bincount(cells, weights=weights).astype(np.float64)


def ratio_bins(p: FloatArray, q: FloatArray, bins: int = 16) -> IntArray:
    """Cells of about equal p-mass along q/p: every accept or residual bug moves these.

    Parameters
    ----------
    p, q
        Target and draft law, float64 [vocab].
    bins
        Number of cells asked for; large single masses can leave fewer.

    Returns
    -------
    ndarray
        Cell of each token, int64 [vocab], numbered from 0. Tokens with p = 0 share a
        cell of their own, the last.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where(p > 0, q / p, np.inf)
    order = np.argsort(ratio, kind="stable")
    before = np.concatenate([[0.0], p[order].cumsum()[:-1]])
    cells = np.empty(len(p), np.int64)
    cells[order] = np.minimum((before * bins).astype(np.int64), bins - 1)
    cells[p == 0] = bins
    return np.unique(cells, return_inverse=True)[1].astype(np.int64)


def id_blocks(p: FloatArray, size: int = 128) -> IntArray:
    """Cells of consecutive token ids: a kernel's tiles, the last one often partial."""
    return np.arange(len(p), dtype=np.int64) // size


def rank_bins(p: FloatArray, deepest: int = 11) -> IntArray:
    """Cells by tail mass of p: the likeliest tokens, then halves, quarters, ... of it.

    Filters and temperatures move mass between head and tail.

    Parameters
    ----------
    p
        The law, float64 [cells].
    deepest
        The last cell holds the tokens behind tail mass ``2 ** -deepest``.

    Returns
    -------
    ndarray
        Cell of each token, int64 [cells], numbered from 0.
    """
    order = np.argsort(-p, kind="stable")
    tail = np.maximum(1 - np.concatenate([[0.0], p[order].cumsum()[:-1]]), 2.0**-60)
    depth = np.minimum(np.floor(-np.log2(tail)), deepest).astype(np.int64)
    cells = np.empty(len(p), np.int64)
    cells[order] = depth
    return np.unique(cells, return_inverse=True)[1].astype(np.int64)


def id_tiles(p: FloatArray, most: int = 64) -> IntArray:
    """Cells of consecutive ids whose size is a power of two, at most `most` of them."""
    size = 1
    while -(-len(p) // size) > most:
        size *= 2
    return id_blocks(p, max(size, 2))
