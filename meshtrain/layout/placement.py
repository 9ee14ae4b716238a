"""`Placement`: a layout on a mesh. The one place that turns dims and shapes into shardings.

Trainer, checkpoint, planner, audit and tables all ask here. An array is sharded as the rows of its class say or it is
an error; there are two declared exceptions, both reported by `show`: key and value heads that are fewer than their
axes are replicated inside the group, and the vocabulary is padded until its axes divide it.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from meshtrain.layout.array import ArraySpec, Tree, map_specs
from meshtrain.layout.dims import DIMS
from meshtrain.layout.finding import ERROR, Finding, raise_errors
from meshtrain.layout.gather import gather_for_use
from meshtrain.layout.layout import WEIGHT_KINDS, Layout
from meshtrain.layout.mesh import MeshShape, abstract_mesh, build_mesh
from meshtrain.layout.rules import Axes, Rules, entry_axes, partition_spec
from meshtrain.layout.words import plural, sizes_text

PADDED = "vocab"  # padded until its axes divide it
LAYERS = "layers"  # cut into pieces by a pipeline
REPLICATED = "kv_heads"  # replicated inside the group where they are fewer than their axes


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: it may be a static argument of a trace
class Placement:
    """A layout and the mesh (of devices, or abstract) that it is placed on.

    The classes of arrays (`kind`): "params" the copy of the weights that computes, "use" a weight while it is used
    (the rows for every array alone: gathered over ZeRO's axes), "grads", "optimizer" the float32 masters and moments,
    "activations".
    """

    layout: Layout
    mesh: Mesh | AbstractMesh
    reached: Axes = field(default=(), kw_only=True)  # manual axes over which the code that sees this talks all the same

    @cached_property
    def axis_sizes(self) -> dict[str, int]:
        """Axis name -> size, slowest-changing first."""
        return dict(self.mesh.shape)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.axis_sizes.values())

    @property
    def platform(self) -> str:
        """What the mesh's devices are ("cpu", "gpu", ...), known while tracing; "" for a mesh without devices."""
        return str(self.mesh.devices.flat[0].platform) if isinstance(self.mesh, Mesh) else ""

    @property
    def of_experts(self) -> "Placement":
        """The placement whose axes the exchange of tokens with experts goes over: this one. (A stand-in for one device,
        which is only traced, has its own, and arrays that are that device's parts: cost/local.py.)"""
        return self

    @property
    def in_parts(self) -> bool:
        """Whether arrays are one device's parts, and not whole."""
        return False

    def part(self, x: jax.Array, spec: PartitionSpec, result: bool = False) -> jax.Array:
        """Where arrays are parts: `x` as a device has it under the spec; or a result of that spec, to be handed on."""
        return x

    def rules(self, kind: str) -> Rules:
        """The rows that hold for this class of arrays."""
        return self.layout.rules if kind == "use" else getattr(self.layout, kind)

    def axes(self, dim: str, kind: str = "activations") -> Axes:
        """The axes larger than 1 that shard `dim` in this class, slowest-changing first."""
        return tuple(axis for axis in self.rules(kind).axes(dim) if self.axis_sizes[axis] > 1)

    def num_shards(self, dim: str, kind: str = "activations") -> int:
        """Into how many parts `dim` is cut in this class."""
        return self.size(self.axes(dim, kind))

    def size(self, axes: Axes) -> int:
        """Over how many devices these axes go together."""
        return math.prod(self.axis_sizes[axis] for axis in axes)

    def text(self, axes: Axes) -> str:
        """These axes with their sizes, for errors: `data=2 x stage=4`."""
        return sizes_text({axis: self.axis_sizes[axis] for axis in axes})

    def spec(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        """PartitionSpec of an array; InputError where a dim does not divide or an axis would stand twice."""
        raise_errors(self.problems(kind, dims, shape))
        rules = self.rules(kind)
        return partition_spec([self._axes_of(rules, dim, size) for dim, size in zip(dims, shape, strict=True)])

    def problems(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> list[Finding]:
        """Why an array of these dims cannot be placed: an axis that stands twice, dims that do not divide."""
        rules = self.rules(kind)
        findings = rules.conflicts(dims)  # an error whatever the sizes
        for dim, size in zip(dims, shape, strict=True):
            shards = self.size(self._axes_of(rules, dim, size))
            if size % shards and dim != PADDED:
                findings.append(self._does_not_divide(rules, dim, size, shards))
        return findings

    def _axes_of(self, rules: Rules, dim: str, size: int) -> Axes:
        """The axes that shard a dim of this size: all of its row, but for heads that are fewer than their axes."""
        axes = rules.axes(dim)
        shards = self.size(axes)
        if dim == REPLICATED and size % shards and shards % size == 0:
            while size % self.size(axes):
                axes = axes[:-1]
        return axes

    def _does_not_divide(self, rules: Rules, dim: str, size: int, shards: int) -> Finding:
        axes = rules.axes(dim)
        return Finding(
            ERROR,
            "does-not-divide",
            rules.source[dim],
            f"{self.text(axes)} would cut the dim {dim!r} (size {size},"
            f" {DIMS[dim].meaning}) into {shards} parts, and {size} does not divide by {shards}.",
            _sizes_that_divide(size, shards, axes),
        )

    def sharding(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        """NamedSharding of an array on this mesh; errors as in `spec`."""
        return NamedSharding(self.mesh, self.spec(kind, dims, shape))

    def shardings(self, kind: str, specs: Tree) -> Tree:
        """The tree of NamedSharding for a tree of ArraySpec."""
        return map_specs(lambda spec: self.sharding(kind, spec.dims, spec.shape), specs)

    def physical(self, spec: ArraySpec) -> ArraySpec:
        """The array as it lies on devices, in every class alike: the vocabulary padded until its axes divide it, a
        pipeline's layers filled up to stages x repeats pieces of the longest one's length."""
        shape = tuple(self._physical_size(dim, size) for dim, size in zip(spec.dims, spec.shape, strict=True))
        return spec if shape == spec.shape else replace(spec, shape=shape)

    def _physical_size(self, dim: str, size: int) -> int:
        if dim == LAYERS and self.layout.pipeline:
            return int(self.layout.pipeline.layer_ids(size, self.num_stages).size)
        if dim != PADDED:
            return size
        multiple = math.lcm(*(self.num_shards(PADDED, kind) for kind in ("use", *WEIGHT_KINDS, "activations")))
        return -(-size // multiple) * multiple

    @property
    def num_stages(self) -> int:
        """Stages of the pipeline: into how many parts the layers are cut while they are used. 1 without a pipeline."""
        return self.num_shards(LAYERS, "use") if self.layout.pipeline else 1

    def layer_ids(self, num_layers: int) -> np.ndarray | None:
        """int [stage, chunk, layer]: which layer of the model is in each slot, -1 for none. None without a pipeline."""
        return self.layout.pipeline.layer_ids(num_layers, self.num_stages) if self.layout.pipeline else None

    def constrain(self, x: jax.Array, *dims: str) -> jax.Array:
        """`x` with the sharding of an activation of these dims; the compiler puts a collective where it changes."""
        if self.num_devices == 1:
            return x
        return jax.lax.with_sharding_constraint(x, self._here("activations", dims, x.shape))

    def constrain_tree(self, kind: str, tree: Tree, specs: Tree) -> Tree:
        """A tree of arrays with the shardings of their class fixed; `specs` is the tree of their ArraySpec."""
        if self.num_devices == 1:
            return tree
        return map_specs(
            lambda spec, x: jax.lax.with_sharding_constraint(x, self._here(kind, spec.dims, x.shape)), specs, tree
        )

    def at_use(self, w: jax.Array, *dims: str) -> jax.Array:
        """A weight gathered over the axes that only store it (ZeRO-3); its gradient goes to the `gradient_rows`.

        The gathered copy is named "gathered_weight", so that no remat policy needs to keep it for the backward pass.
        """
        if self.num_devices == 1:
            return w
        rows = self.gradient_rows
        stored, used, grads = (self.spec_here(kind, dims, w.shape) for kind in ("params", "use", rows))
        if stored == used == grads:
            return w
        steps = tuple(self._as_seen(spec) for spec in dict.fromkeys((self._first_step(grads), grads)))
        return gather_for_use(w, self._as_seen(used), steps, stored != used)

    def _first_step(self, spec: PartitionSpec) -> PartitionSpec:
        """The spec with no axis of the length behind those of the batch (or the other way round) in one entry."""
        length = self.rules("activations").axes("length")

        def first(axes: Axes) -> Axes:
            turn = next((i for i, axis in enumerate(axes) if (axis in length) != (axes[0] in length)), len(axes))
            return axes[:turn]

        return partition_spec([first(entry_axes(entry)) for entry in spec])

    @property
    def gradient_rows(self) -> str:
        """The class whose rows a microbatch's gradient goes to: where it is the only one, where it is needed next."""
        return "optimizer" if self.layout.accumulate == 1 and self.layout.pipeline is None else "grads"

    def gathers(self, specs: Tree) -> bool:
        """Whether any weight of the tree is stored in more parts than it is used in."""
        leaves = jax.tree.leaves(
            map_specs(lambda s: self.spec("params", s.dims, s.shape) != self.spec("use", s.dims, s.shape), specs)
        )
        return any(leaves)

    def spec_here(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        """The spec as seen from the code being traced: inside a shard_map the manual axes are out of reach, and `shape`
        is of what they have left. Errors as in `spec`."""
        manual = jax.sharding.get_abstract_mesh().manual_axes
        cut = [self.size(tuple(axis for axis in self.axes(dim, kind) if axis in manual)) for dim in dims]
        return self._as_seen(self.spec(kind, dims, tuple(n * size for n, size in zip(cut, shape, strict=True)))).spec

    def _here(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        """The sharding as seen from the code being traced."""
        return self._as_seen(self.spec_here(kind, dims, shape))

    def _as_seen(self, spec: PartitionSpec) -> NamedSharding:
        """The sharding of a spec without the axes that are manual in the code being traced."""
        context = jax.sharding.get_abstract_mesh()
        manual = set(context.manual_axes)
        if not manual:
            return NamedSharding(self.mesh, spec)
        free = [tuple(axis for axis in entry_axes(entry) if axis not in manual) for entry in spec]
        return NamedSharding(context, partition_spec(free))

    def check_batch(self, global_batch: int) -> int:
        """Sequences per device and microbatch; InputError with batches that would work where it does not divide."""
        raise_errors(self.batch_problems(global_batch))
        return global_batch // (self.num_shards("batch") * self.num_microbatches)

    @property
    def num_microbatches(self) -> int:
        """Into how many parts, one after the other, a step's batch is cut: by `accumulate` and by the pipeline."""
        return self.layout.accumulate * (self.layout.pipeline.microbatches if self.layout.pipeline else 1)

    def batch_problems(self, global_batch: int) -> list[Finding]:
        """A finding where the batch does not divide into its parts and microbatches."""
        shards, microbatches = self.num_shards("batch"), self.num_microbatches
        unit = shards * microbatches
        keys = "accumulate x pipeline.microbatches" if self.layout.pipeline else "accumulate"
        if global_batch >= 1 and global_batch % unit == 0:
            return []
        below, above = global_batch // unit * unit, -(-max(global_batch, 1) // unit) * unit
        axes = self.text(self.axes("batch")) or "no axis"
        near = f"{below} or {above}" if below > 0 and below != above else f"{above}"
        return [
            Finding(
                ERROR,
                "batch",
                "global_batch",
                f"{plural(global_batch, 'sequence')} do not divide into {plural(shards, 'part')} of the batch"
                f" (rules.batch: {axes}) times {plural(microbatches, 'microbatch')} ({keys}): {unit:,} in all.",
                f"global_batch={near} would work{self._fewer_microbatches(global_batch)}.",
            )
        ]

    def _fewer_microbatches(self, global_batch: int) -> str:
        """A number of microbatches that the batch divides into, as a further way out."""
        most = min(self.layout.accumulate - 1, global_batch // self.num_shards("batch"))
        fitting = [n for n in range(2, most + 1) if global_batch % (self.num_shards("batch") * n) == 0]
        return f", or accumulate={fitting[-1]}" if fitting and not self.layout.pipeline else ""


def place(layout: Layout, num_devices: int | None = None) -> Placement:
    """The layout on this process's devices (the first `num_devices` of them; default all)."""
    devices = jax.devices()[:num_devices]
    return Placement(layout, build_mesh(layout.mesh.resolve(len(devices)), devices))


def place_abstract(layout: Layout, num_devices: int) -> Placement:
    """The layout on this many devices that need not exist: for tables, checks and tracing."""
    return Placement(layout, abstract_mesh(layout.mesh.resolve(num_devices)))


def single_placement() -> Placement:
    """One device, no rules: what a program without a layout computes."""
    return place(Layout(MeshShape({}), name="single"), 1)


def _sizes_that_divide(size: int, shards: int, axes: Axes) -> str:
    """The way out, in words: the nearest sizes of the dim, and the most parts that divide size and devices."""
    below, above = size // shards * shards, -(-size // shards) * shards
    near = f"{below} or {above}" if below else f"{above}"
    parts = math.gcd(size, shards)
    axis = f"mesh.{axes[0]}={parts}" if len(axes) == 1 else f"axes of {parts} in all"
    return f"A size of {near} would work, or {axis}."
