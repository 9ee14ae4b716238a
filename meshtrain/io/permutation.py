"""Pseudo-random permutations and streams that need no memory: any element is computed on its own.

A keyed Feistel network permutes the numbers of a few bits; what falls outside 0..size-1 is sent through again until
it falls inside (cycle walking), so each epoch's order is a true permutation: every window once, none twice.
"""

import numpy as np

from meshtrain.io.rows import IntArray

NUM_ROUNDS = 8  # even; 4 already pass for pseudo-random, the others are cheap
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: SplitMix64's stride


def mix(x: np.ndarray) -> np.ndarray:
    """A bijective hash of uint64 (the finaliser of SplitMix64; Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def keyed(seed: int, *words: IntArray | int) -> np.ndarray:
    """uint64 hashes of (seed, words...), which broadcast against each other; at least one-dimensional."""
    state = mix(np.array([(seed + _GOLDEN) % 2**64], np.uint64))
    for word in words:
        state = mix(
            (state ^ np.atleast_1d(np.asarray(word).astype(np.uint64))) * np.uint64(_GOLDEN) + np.uint64(_GOLDEN)
        )
    return state


def permuted(index: IntArray, size: int, seed: int, epoch: IntArray) -> np.ndarray:
    """Where each `index` [n] of 0..size-1 lands in the permutation of its `epoch` [n]; int64 [n]."""
    num_bits = max(2, (size - 1).bit_length())
    key = keyed(seed, epoch)
    x = _feistel(np.asarray(index, np.uint64), key, num_bits)
    while (outside := np.flatnonzero(x >= np.uint64(size))).size:
        x[outside] = _feistel(x[outside], key[outside], num_bits)
    return x.astype(np.int64)


def _feistel(x: np.ndarray, key: np.ndarray, num_bits: int) -> np.ndarray:
    """A bijection of the numbers of `num_bits` bits: each round swaps the halves and hashes one into the other."""
    left_bits, right_bits = num_bits // 2, num_bits - num_bits // 2
    for number in range(NUM_ROUNDS):
        left, right = x >> np.uint64(right_bits), x & np.uint64(2**right_bits - 1)
        hashed = mix(right ^ (key + np.uint64(number * _GOLDEN % 2**64))) & np.uint64(2**left_bits - 1)
        x = (right << np.uint64(left_bits)) | (left ^ hashed)
        left_bits, right_bits = right_bits, left_bits
    return x
