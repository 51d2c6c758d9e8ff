"""The numbers that PyTorch and our Rust tests both start from, so that no binary is committed.

Element i (row-major) of tensor number s is a hash of (i, s), the same on every machine:

>>> [int(h) for h in hashes(4, s=0)]
[3170179127, 994412544, 1453603349, 753486803]
>>> uniform((3,), s=1, std=0.1).tolist()
[-0.048502568155527115, 0.07746080309152603, 0.03866589814424515]
>>> images(1, batch=0)[0, 0, 0, :3].tolist()
[0.5290153622627258, 0.25488436222076416, 0.23436644673347473]
>>> labels(8, batch=0).tolist()
[8, 2, 8, 3, 5, 3, 8, 4]

Tensor numbers: a parameter's is its index in the order of `state_dict`; the images of batch b
are number 1000 + b, its labels 2000 + b.

Run: `pip install numpy`, then `python -m doctest formula.py` (prints nothing when all is well).
It refuses to be a good random generator: it only has to be simple to write twice.
"""

import numpy as np


def hashes(count, s):
    """The first `count` hashes of tensor number s, as uint32; all arithmetic wraps at 2^32."""
    offset = np.uint32((s * 2246822519 + 374761393) % 2**32)
    h = np.arange(count, dtype=np.uint32) * np.uint32(2654435761) + offset
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def unit(shape, s):
    """Tensor number s with float64 values in [0, 1)."""
    return (hashes(int(np.prod(shape)), s) / 2.0**32).reshape(shape)


def uniform(shape, s, std):
    """Tensor number s, uniform around 0 with standard deviation `std`, rounded to float32."""
    return ((2 * unit(shape, s) - 1) * std * np.sqrt(3)).astype(np.float32)


def images(count, batch):
    """The images of a batch, (count, 1, 28, 28) float32, from 0 to 1."""
    return unit((count, 1, 28, 28), 1000 + batch).astype(np.float32)


def labels(count, batch):
    """The labels of a batch, (count,) int64 in 0..10."""
    return np.floor(unit((count,), 2000 + batch) * 10).astype(np.int64)
