"""`Cluster`: the machine that a run is meant for, as typed quantities, from `configs/clusters/`; no device is asked.

Three links, by how near two GPUs are: `fast` within a domain of `fast_gpus` (NVLink), `node` between the GPUs of a node
beyond that (PCIe), `network` between nodes. All speeds are one way, of one GPU. What part of each figure a program
gets is a share, and each share names its source.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from meshtrain.cost.quantity import (
    ByteRate,
    Bytes,
    FlopRate,
    Seconds,
    read_bytes,
    read_failure_rate,
    read_flop_rate,
    read_link_rate,
    read_memory_rate,
    read_price,
    read_seconds,
)
from meshtrain.errors import InputError, nearest

# What is left of a device's memory goes to the libraries, the allocator and what a prediction may miss.
USABLE = 0.92

LINKS = ("fast", "node", "network")
SHARES = ("matmul", "memory", *LINKS)


@dataclass(frozen=True)
class Link:
    """rate: bytes/s one way of one GPU. latency: of one message."""

    rate: ByteRate
    latency: Seconds

    def __post_init__(self) -> None:
        _is(self.rate, ByteRate, "rate")
        _is(self.latency, Seconds, "latency")


@dataclass(frozen=True)
class Share:
    """The part of a figure that programs get, above 0 and at most 1, and where that is known from."""

    value: float
    source: str


@dataclass(frozen=True)
class Cluster:
    """gpu: its name. fast_gpus: how many share fast links, 1 where there are none; it divides gpus_per_node or is a
    multiple of it. memory, memory_rate, peak (by dtype): of one GPU. shares: of `matmul` (the peak), `memory` (its
    rate) and each link. price: USD per GPU-hour. failures: per GPU-hour. xla_flags: what the launcher sets.
    """

    name: str
    gpu: str
    gpus_per_node: int
    fast_gpus: int
    memory: Bytes
    memory_rate: ByteRate
    peak: Mapping[str, FlopRate]
    fast: Link
    node: Link
    network: Link
    shares: Mapping[str, Share]
    price: float | None = None
    failures: float | None = None
    xla_flags: tuple[str, ...] = ()
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _is(self.memory, Bytes, "memory")
        _is(self.memory_rate, ByteRate, "memory_rate")
        for dtype, rate in self.peak.items():
            _is(rate, FlopRate, f"peak.{dtype}")

    @classmethod
    def parse(cls, mapping: Mapping[str, Any], name: str, doc: str = "") -> "Cluster":
        """A cluster from the dict of a cluster file. InputError for the first wrong line, with the right form."""
        _known(mapping, [f.name for f in fields(cls) if f.name not in ("name", "doc")], f"cluster {name}")
        gpus = _count(mapping, "gpus_per_node", 8)
        fast = _count(mapping, "fast_gpus", gpus)
        if gpus % fast and fast % gpus:
            raise InputError(
                f"fast_gpus: {fast} GPUs with fast links do not divide the {gpus} of a node, nor are they whole nodes;"
                f" fast_gpus={gpus} would work, or 1 where there are none."
            )
        links = {key: _link(mapping.get(key), key, gpus) for key in LINKS if key in mapping}
        if "network" not in links:
            links["network"] = _link(None, "network", gpus)
        for key, other in (("fast", "node"), ("node", "fast")):
            if key not in links:
                if other not in links:
                    _link(None, other, gpus)
                links[key] = links[other]
        price, failures = mapping.get("price"), mapping.get("failures")
        return cls(
            name=name,
            gpu=str(mapping.get("gpu", name)),
            gpus_per_node=gpus,
            fast_gpus=fast,
            memory=read_bytes(mapping.get("memory"), "memory"),
            memory_rate=read_memory_rate(mapping.get("memory_rate"), "memory_rate"),
            peak={k: read_flop_rate(v, f"peak.{k}") for k, v in _section(mapping.get("peak"), "peak").items()},
            shares=_shares(_section(mapping.get("shares"), "shares")),
            price=None if price is None else read_price(price, "price"),
            failures=None if failures is None else read_failure_rate(failures, "failures"),
            xla_flags=_flags(mapping.get("xla_flags", ())),
            doc=doc,
            **links,
        )

    def peak_rate(self, dtype: str) -> FlopRate:
        """FLOP/s of one GPU in this dtype; InputError with the dtypes that the file has."""
        if dtype not in self.peak:
            raise InputError(
                f"peak.{dtype}: the cluster {self.name} has no figure for {dtype}; it has {', '.join(self.peak)}."
                f" peak=dict({dtype}='...TFLOP/s') in its file would give one."
            )
        return self.peak[dtype]

    def share(self, key: str) -> float:
        """The part that programs get of a link's rate, of `matmul` or of `memory`."""
        return self.shares[key].value

    def link(self, key: str) -> Link:
        """The link of this name."""
        links: dict[str, Link] = {"fast": self.fast, "node": self.node, "network": self.network}
        return links[key]


def _is(value: object, kind: type, key: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{key}: {value!r} is no {kind.__name__}: its unit is missing.")


def _known(mapping: Mapping[str, Any], valid: list[str], where: str) -> None:
    for key in mapping:
        if key not in valid:
            raise InputError(f"{where}: there is no key {key!r}.{nearest(key, valid)} The keys are: {' '.join(valid)}.")


def _section(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not value:
        example = {"peak": "dict(bfloat16='989 TFLOP/s')", "shares": "dict(matmul=(0.7, 'source'), ...)"}[key]
        raise InputError(f"{key}: expected a section, such as {key}={example}, not {value!r}.")
    return value


def _count(mapping: Mapping[str, Any], key: str, example: int) -> int:
    value = mapping.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key}: expected a whole number of at least 1, such as {key}={example}, not {value!r}.")
    return value


def _link(value: Any, key: str, gpus_per_node: int) -> Link:
    example = f"{key}=dict(rate='400 Gb/s one way per GPU', latency='5 us')"
    if not isinstance(value, Mapping):
        raise InputError(f"{key}: expected a link, {example}, not {value!r}.")
    _known(value, ["rate", "latency"], key)
    return Link(
        read_link_rate(value.get("rate"), f"{key}.rate", gpus_per_node),
        read_seconds(value.get("latency"), f"{key}.latency"),
    )


def _shares(section: Mapping[str, Any]) -> dict[str, Share]:
    _known(section, list(SHARES), "shares")
    found = {}
    for key in SHARES:
        value: Any = section.get(key)
        good = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], str) and value[1].strip()
        if not good or isinstance(value[0], bool) or not isinstance(value[0], int | float) or not 0 < value[0] <= 1:
            raise InputError(
                f"shares.{key}: expected a share above 0 and at most 1 and its source, such as"
                f" shares.{key}=(0.75, 'measured with ...'), not {value!r}."
            )
        found[key] = Share(float(value[0]), value[1])
    return found


def _flags(value: Any) -> tuple[str, ...]:
    good = isinstance(value, list | tuple) and all(isinstance(flag, str) and flag.startswith("--") for flag in value)
    if not good:
        raise InputError(f"xla_flags: expected a list of texts such as '--xla_gpu_...=true', not {value!r}.")
    return tuple(value)
