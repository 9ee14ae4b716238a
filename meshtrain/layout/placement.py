"""`Placement`: a layout on a mesh. The one place that turns dims and shapes into shardings.

Trainer, checkpoint, planner, audit and tables all ask here. An array is sharded as the rows of its class say or it is
an error; there are two declared exceptions, both reported by `show`: key and value heads that are fewer than their
axes are replicated inside the group, and the vocabulary is padded until its axes divide it.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from meshtrain.errors import InputError
from meshtrain.layout.array import ArraySpec, Tree, map_specs
from meshtrain.layout.dims import DIMS
from meshtrain.layout.gather import gather_for_use
from meshtrain.layout.layout import Layout
from meshtrain.layout.mesh import MeshShape, build_mesh
from meshtrain.layout.rules import Axes, Rules, partition_spec

PADDED = "vocab"  # padded until its axes divide it
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

    @cached_property
    def axis_sizes(self) -> dict[str, int]:
        """Axis name -> size, slowest-changing first."""
        return dict(self.mesh.shape)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.axis_sizes.values())

    def rules(self, kind: str) -> Rules:
        """The rows that hold for this class of arrays."""
        return self.layout.rules if kind == "use" else getattr(self.layout, kind)

    def axes(self, dim: str, kind: str = "activations") -> Axes:
        """The axes larger than 1 that shard `dim` in this class, slowest-changing first."""
        return tuple(axis for axis in self.rules(kind).axes(dim) if self.axis_sizes[axis] > 1)

    def num_shards(self, dim: str, kind: str = "activations") -> int:
        """Into how many parts `dim` is cut in this class."""
        return math.prod(self.axis_sizes[axis] for axis in self.axes(dim, kind))

    def spec(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> PartitionSpec:
        """PartitionSpec of an array; InputError where a dim does not divide or an axis would stand twice."""
        rules = self.rules(kind)
        rules.spec(dims)  # an axis that stands twice is an error whatever the sizes
        return partition_spec(
            [self._axes_of(rules, dim, size, dims, shape) for dim, size in zip(dims, shape, strict=True)]
        )

    def _axes_of(self, rules: Rules, dim: str, size: int, dims: tuple[str, ...], shape: tuple[int, ...]) -> Axes:
        axes = rules.axes(dim)
        shards = math.prod(self.axis_sizes[axis] for axis in axes)
        if size % shards == 0 or dim == PADDED:
            return axes
        if dim == REPLICATED and shards % size == 0:
            while size % math.prod(self.axis_sizes[axis] for axis in axes):
                axes = axes[:-1]
            return axes
        raise InputError(
            f"{rules.source[dim]}: {' x '.join(f'{axis}={self.axis_sizes[axis]}' for axis in axes)} cuts the dim"
            f" {dim!r} into {shards} parts, which does not divide its size {size} (array [{', '.join(dims)}] of shape"
            f" {list(shape)}). {_sizes_that_divide(dim, size, shards)}"
        )

    def sharding(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        """NamedSharding of an array on this mesh; errors as in `spec`."""
        return NamedSharding(self.mesh, self.spec(kind, dims, shape))

    def shardings(self, kind: str, specs: Tree) -> Tree:
        """The tree of NamedSharding for a tree of ArraySpec."""
        return map_specs(lambda spec: self.sharding(kind, spec.dims, spec.shape), specs)

    def physical(self, spec: ArraySpec) -> ArraySpec:
        """The array as it lies on devices: the vocabulary padded until its axes divide it, in every class alike."""
        if PADDED not in spec.dims:
            return spec
        multiple = math.lcm(
            *(self.num_shards(PADDED, kind) for kind in ("use", "params", "grads", "optimizer", "activations"))
        )
        shape = tuple(
            -(-size // multiple) * multiple if dim == PADDED else size
            for dim, size in zip(spec.dims, spec.shape, strict=True)
        )
        return replace(spec, shape=shape)

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
        """A weight gathered over the axes that only store it (ZeRO-3); its gradient goes to the sharding of "grads".

        The gathered copy is named "gathered_weight", so that no remat policy needs to keep it for the backward pass.
        """
        if self.num_devices == 1:
            return w
        stored, used, grads = (self.spec(kind, dims, w.shape) for kind in ("params", "use", "grads"))
        if stored == used == grads:
            return w
        return gather_for_use(w, self._here("use", dims, w.shape), self._here("grads", dims, w.shape), stored != used)

    def gathers(self, specs: Tree) -> bool:
        """Whether any weight of the tree is stored in more parts than it is used in."""
        leaves = jax.tree.leaves(
            map_specs(lambda s: self.spec("params", s.dims, s.shape) != self.spec("use", s.dims, s.shape), specs)
        )
        return any(leaves)

    def _here(self, kind: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
        """The sharding as seen from the code being traced: inside a shard_map the manual axes are out of reach."""
        spec = self.spec(kind, dims, shape)
        context = jax.sharding.get_abstract_mesh()
        manual = set(context.manual_axes)
        if not manual:
            return NamedSharding(self.mesh, spec)
        free = [tuple(axis for axis in _tuple(entry) if axis not in manual) for entry in spec]
        return NamedSharding(context, partition_spec(free))

    def check_batch(self, global_batch: int) -> int:
        """Sequences per device and microbatch; InputError with batches that would work where it does not divide."""
        shards, accumulate = self.num_shards("batch"), self.layout.accumulate
        if global_batch < 1 or global_batch % (shards * accumulate):
            unit = shards * accumulate
            below, above = global_batch // unit * unit, -(-max(global_batch, 1) // unit) * unit
            axes = " x ".join(f"{axis}={self.axis_sizes[axis]}" for axis in self.axes("batch")) or "no axis"
            near = f"{below} or {above}" if below and below != above else f"{above}"
            raise InputError(
                f"global_batch: {global_batch} sequences do not divide into {shards} parts of the batch (rules.batch:"
                f" {axes}) times {accumulate} microbatches (accumulate): {unit} in all. global_batch={near} would work."
            )
        return global_batch // (shards * accumulate)


def place(layout: Layout, num_devices: int | None = None) -> Placement:
    """The layout on this process's devices (the first `num_devices` of them; default all)."""
    devices = jax.devices()[:num_devices]
    return Placement(layout, build_mesh(layout.mesh.resolve(len(devices)), devices))


def single_placement() -> Placement:
    """One device, no rules: what a program without a layout computes."""
    return place(Layout(MeshShape({}), name="single"), 1)


def _tuple(entry: object) -> Axes:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)  # type: ignore[arg-type]


def _sizes_that_divide(dim: str, size: int, shards: int) -> str:
    """The way out, in words: the nearest sizes of the dim, and numbers of parts that divide the size."""
    below, above = size // shards * shards, -(-size // shards) * shards
    near = f"{below} or {above}" if below else f"{above}"
    parts = [n for n in range(1, shards) if size % n == 0]
    return f"A size of {near} ({DIMS[dim].meaning}) would work, or an axis of size {parts[-1]}."
