"""Who takes part in a collective: replica groups, in the three forms that XLA prints, pairs, and the mesh axes meant.

    {{0,2},{1,3}}               the groups themselves
    [8,64]<=[64,8]T(1,0)        iota: numbers in the shape behind the arrow, transposed, then as 8 groups of 64
    mesh['a'=2,'b'=8] {'b'}     a mesh of the compiler's own, and the axes of it in which a group's devices differ

A device's number is its place in the layout's mesh, slowest axis first, so its coordinates say which axes vary.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Groups = np.ndarray  # int [group, member]

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\](?:, ?device_ids=\((.*?)\)(?= ?\{))? ?\{([^}]*)\}")
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?(?:=(\d+))?")


@dataclass(frozen=True)
class Partners:
    """The axes in which the devices of a group differ, slowest first; how many devices a group has; whether groups
    are whole: all devices that differ in these axes alone. share: of all devices, how many take part."""

    axes: tuple[str, ...]
    size: int
    whole: bool = True
    share: float = 1.0


def replica_groups(attributes: str, num_devices: int) -> Groups:
    """The groups of an instruction's attributes; ValueError for a form that is not known."""
    start = attributes.find("replica_groups=")
    if start < 0:
        return np.arange(num_devices)[None]
    text = attributes[start + len("replica_groups=") :]
    if text.startswith("{"):
        return _listed(text, num_devices)
    if found := _IOTA.match(text):
        return _iota(found).reshape(_ints(found[1]))
    if found := _MESH.match(text):
        return _of_mesh(found)
    raise ValueError(f"replica groups of an unknown form: {text[:80]}")


def pairs(attributes: str) -> Groups:
    """int [pair, (source, target)] of a permute, without those that send to themselves."""
    found = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", attributes)
    if found is None:
        raise ValueError(f"a permute without pairs: {attributes[:80]}")
    array = np.array(_ints(found[1]), int).reshape(-1, 2)
    return array[array[:, 0] != array[:, 1]]


def partners(groups: Groups, axis_sizes: Mapping[str, int]) -> Partners:
    """The axes of groups. Devices are numbered in the order of the mesh."""
    names, sizes = tuple(axis_sizes), tuple(axis_sizes.values())
    coordinates = np.stack(np.unravel_index(groups, sizes or (1,)), -1)
    differs = (coordinates != coordinates[:, :1]).any(axis=(0, 1))[: len(names)]
    axes = tuple(name for name, varies in zip(names, differs, strict=True) if varies)
    full = math.prod(axis_sizes[axis] for axis in axes)
    return Partners(axes, groups.shape[1], whole=full == groups.shape[1])


def pair_partners(pairs: Groups, axis_sizes: Mapping[str, int]) -> Partners:
    """The axes of a permute's pairs: those in which any source differs from its target."""
    names, sizes = tuple(axis_sizes), tuple(axis_sizes.values())
    if not len(pairs):
        return Partners((), 1, share=0.0)
    coordinates = np.stack(np.unravel_index(pairs, sizes or (1,)), -1)
    differs = (coordinates[:, 0] != coordinates[:, 1]).any(axis=0)[: len(names)]
    axes = tuple(name for name, varies in zip(names, differs, strict=True) if varies)
    share = len(np.unique(pairs[:, 0])) / math.prod(sizes)
    return Partners(axes, math.prod(axis_sizes[axis] for axis in axes), share=share)


def _ints(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _listed(text: str, num_devices: int) -> Groups:
    end = text.find("}}")
    if text.startswith("{}") or end < 0:
        return np.arange(num_devices)[None]
    rows = [_ints(row) for row in text[: end + 1].strip("{}").split("},{")]
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"replica groups of different sizes: {text[:80]}")
    return np.array(rows)


def _iota(found: re.Match[str]) -> np.ndarray:
    sizes = _ints(found[2])
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose(_ints(found[3])) if found[3] else numbers


def _of_mesh(found: re.Match[str]) -> Groups:
    """Groups over axes of the compiler's mesh or parts of them: 'a':(2)4 is the part of size 4 behind one of 2."""
    sizes = {name: int(size) for name, _, _, size in _AXIS.findall(found[1])}
    numbers = _device_ids(found[2], math.prod(sizes.values()))
    wanted = [(name, int(before or 1), int(size or sizes[name])) for name, before, size, _ in _AXIS.findall(found[3])]
    split: list[int] = []
    # Every axis as its (before, size) parts, so that each part is a dimension of its own.
    at: dict[tuple[str, int, int], int] = {}
    for name, size in sizes.items():
        cuts = sorted({1, size, *(b for n, b, _ in wanted if n == name), *(b * s for n, b, s in wanted if n == name)})
        for before, behind in pairwise(cuts):
            at[name, before, behind // before] = len(split)
            split.append(behind // before)
    inner = [at[one] for one in wanted if one[2] > 1]
    outer = [i for i in range(len(split)) if i not in inner]
    members = math.prod(split[i] for i in inner)
    return numbers.reshape(split).transpose([*outer, *inner]).reshape(-1, members)


def _device_ids(text: str | None, num_devices: int) -> np.ndarray:
    if not text:
        return np.arange(num_devices)
    if found := re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text):
        numbers = np.arange(num_devices).reshape(_ints(found[1]))
        return numbers.transpose(_ints(found[2])).reshape(-1) if found[2] else numbers.reshape(-1)
    return np.array(_ints(text))
