"""Peak memory of the compiled training step on one device, by class, for the worst stage; nothing is compiled.

What is kept is counted from the arrays themselves: state and copies from placement, saved activations from a trace of
the layer, buffers of a pipeline from its plan. Rules of the compiler that were read off compiled programs:
buffers that a loop fills are there from the start of the step; only what one layer or one chunk of the loss holds
comes and goes, so the peak is all that is kept and the largest of those.
"""

from dataclasses import dataclass, replace

import numpy as np

from meshtrain.cost.layer import LayerMemory, Saved, layer_memory, tape_bytes
from meshtrain.cost.local import ExpertCuts, LocalSizes, local_model, local_sizes
from meshtrain.cost.muon import whole_bytes
from meshtrain.cost.products import layer_products
from meshtrain.cost.split import dense_rows
from meshtrain.cost.state import state_bytes, weights_of
from meshtrain.layout import ArraySpec, Placement
from meshtrain.layout.dims import STACKS
from meshtrain.layout.inventory import Named, local_bytes, local_shape
from meshtrain.parallel.attention.kernel import cudnn_refusals
from meshtrain.parallel.attention.mask import Mask
from meshtrain.parallel.cross_entropy import num_chunks
from meshtrain.step import StepConfig
from meshtrain.step.pipeline import pipeline_plan

F32 = 4
BLOCKWISE = ("gather", "ring", "usp")  # exchanges that compute with our own kernel
CUT_DIMS = ("heads", "kv_heads", "mlp", "expert_mlp", "expert")
TABLES = ("embedding/table", "output/table")
# Of what is kept, that which only forward and backward passes need.
OF_PASSES = ("compute copy", "gathered tables", "piece", "saved activations", "pipeline slots", "pipeline tape")


@dataclass(frozen=True)
class Part:
    """A class of memory on one device. `transient`: alive only in its own phase; of these the largest counts."""

    name: str
    num_bytes: int
    transient: bool = False
    what: str = ""


@dataclass(frozen=True)
class Memory:
    """parts: what the step holds. saved: what one layer keeps of one microbatch."""

    parts: tuple[Part, ...]
    saved: tuple[Saved, ...] = ()

    @property
    def peak(self) -> int:
        """Bytes: all that is kept, and the largest of what comes and goes."""
        return self.kept + max((part.num_bytes for part in self.parts if part.transient), default=0)

    @property
    def kept(self) -> int:
        """Bytes that are held from the start of the step to its end, or as good as."""
        return sum(part.num_bytes for part in self.parts if not part.transient)

    @property
    def state(self) -> int:
        """Bytes of the step's arguments: masters, moments, counters, the batch."""
        return self.bytes_of("optimizer state") + self.bytes_of("batch")

    def bytes_of(self, name: str) -> int:
        """Bytes of one class; 0 where there is none."""
        return sum(part.num_bytes for part in self.parts if part.name == name)


def predict_memory(
    config: StepConfig, place: Placement, global_batch: int, length: int, *, packed: bool = False, quick: bool = False
) -> Memory:
    """The memory of a training step. `packed`: rows hold several documents. Errors as in `Placement.spec` and
    `Placement.check_batch`.

    quick: a layer is traced for one row and for two, and what more take lies on their line; for a search.
    """
    return _Step(config, place, place.check_batch(global_batch), length, packed, quick).memory(global_batch)


def least_memory(config: StepConfig, place: Placement, global_batch: int, length: int) -> int:
    """Bytes that a step takes at least: of what its layers keep only their inputs, and the results of the products
    that a remat policy keeps; nothing is traced. For a search."""
    step = _Step(config, place, place.check_batch(global_batch), length, False, True)
    return step.state() + sum(part.num_bytes for part in step.weights()) + step.least_activations()


@dataclass(frozen=True)
class _Step:
    """One step on one device: `rows` sequences in a microbatch."""

    config: StepConfig
    place: Placement
    rows: int
    length: int
    packed: bool
    quick: bool

    def memory(self, global_batch: int) -> Memory:
        layer = self._layer()
        per_device = global_batch // self.place.num_shards("batch")
        batch = per_device * (self.length // self.place.num_shards("length")) * F32 * (4 if self.packed else 3)
        parts = [
            Part("optimizer state", self.state(), what="masters and moments"),
            Part("batch", batch),
            *self.weights(),
            *self._activations(layer),
            *(self._pipeline() if self.place.layout.pipeline else ()),
            Part("loss", self._loss(), transient=True, what="logits of one chunk and their gradient"),
            Part("layer", layer.backward, transient=True, what="one layer's backward pass"),
        ]
        # In the update the room of what the passes have held is free again.
        whole = whole_bytes(self.config.model, self.config.optimizer, self.place)
        more = whole - sum(part.num_bytes for part in parts if part.name in OF_PASSES)
        parts.append(Part("whole matrices", max(more, 0), transient=True, what="Muon's, beyond the room of the passes"))
        return Memory(tuple(part for part in parts if part.num_bytes), layer.saved)

    def state(self) -> int:
        """Masters, moments and counters."""
        return state_bytes(self.config, self.place)["optimizer"]

    def least_activations(self) -> int:
        """Inputs of layers, results of products, and the rows of one product of a device's experts."""
        model, place = self.config.model, self.place
        sizes = local_sizes(place, self.rows, self.length)
        tokens, remat = sizes.batch * sizes.length, place.layout.remat
        elements = float(sizes.batch * sizes.stream * model.embed)
        if remat in ("dots", "none"):
            cuts = {dim: place.num_shards(dim, "use") for dim in CUT_DIMS}
            products = [p for p in layer_products(model, cuts, tokens) if not (p.down or p.routed)]
            elements += sum(p.tokens * p.outer * p.share for p in products)
        elements *= self._layers_kept()
        if model.moe is not None and not place.layout.experts.capacity_factor:
            elements += tokens * model.moe.top_k * dense_rows(place, model) * model.embed
        return int(elements) * self._size

    def weights(self) -> list[Part]:
        """The copy that computes, its gradients, and the sums of gradients over microbatches."""
        place, weights = self.place, weights_of(self.config, 1)
        layers, tables = _split(weights.params)
        stored, whole = self._bytes("params", layers), self._bytes("use", layers)
        wide = self.config.precision.dtype.itemsize == F32
        copied = not wide or stored != self._bytes("optimizer", layers)
        pipeline = place.layout.pipeline
        at_once = pipeline is not None and pipeline.gather == "step"
        copy = whole if at_once else stored if copied else 0
        used, kept = self._bytes("use", tables), self._bytes("params", tables)
        gathered = used if at_once else self._output_copy(tables)
        if not at_once and used != kept:
            copy += kept
        grads = self._bytes(place.gradient_rows, layers)
        parts = [Part("compute copy", copy), Part("gathered tables", gathered)]
        if pipeline:
            pieces = pipeline.repeats
            full = whole if at_once else self._bytes("grads", layers)
            parts += [
                Part("gradients", full // pieces, what="of one piece"),
                Part("piece", full // pieces if pieces > 1 else 0, what="the weights of the piece at work"),
                Part(
                    "gradient sums",
                    (full + self._bytes("use" if at_once else "grads", tables)) * F32 // self._size,
                    what="float32",
                ),
            ]
        else:
            parts.append(Part("gradients", grads, what="of the layers"))
            if place.layout.accumulate > 1:
                parts.append(Part("gradient sums", self._grads_bytes(), what="float32, over microbatches"))
        return [*parts, Part("table gradients", self._table_grads(tables), what="float32, of each device's tokens")]

    @property
    def _size(self) -> int:
        return int(self.config.precision.dtype.itemsize)

    def _grads_bytes(self) -> int:
        return self._bytes("grads", weights_of(self.config, 2).grads)

    def _bytes(self, kind: str, arrays: Named) -> int:
        return sum(local_bytes(self.place, kind, spec) for _, spec in arrays)

    def _output_copy(self, tables: Named) -> int:
        """The output matrix as the loss uses it."""
        return max((local_bytes(self.place, "use", spec) for path, spec in tables if path in TABLES), default=0)

    def _table_grads(self, tables: Named) -> int:
        """The loss makes the output matrix' gradient in float32, the embedding its own; both from the start."""
        sizes = [local_bytes(self.place, "use", spec) * F32 // self._size for path, spec in tables if path in TABLES]
        pipeline = self.place.layout.pipeline
        return max(sizes) if pipeline else max(sizes) * 2

    def _layer(self) -> LayerMemory:
        model, precision = local_model(self.config.model, self.place), self.config.precision

        experts = ExpertCuts.of(self.place, self.config.model)

        def traced(sizes: LocalSizes) -> LayerMemory:
            remat = self.place.layout.remat
            return layer_memory(model, sizes, remat, precision.dtype, self.packed, self._cudnn(), experts)

        sizes = local_sizes(self.place, self.rows, self.length)
        if not self.quick or sizes.batch <= 2:
            return traced(sizes)
        one, two = (traced(replace(sizes, batch=number)) for number in (1, 2))
        return one.scaled(two, sizes.batch)

    def _cudnn(self) -> bool:
        """Whether attention is cuDNN's kernel on a GPU."""
        model = self.config.model
        mask = Mask(1.0, model.window, model.attention_softcap, self.packed)
        refusals = cudnn_refusals(mask, "gpu", self.config.precision.dtype, (model.head_dim, model.value_dim))
        return not refusals and self.place.layout.attention not in BLOCKWISE

    def _activations(self, layer: LayerMemory) -> list[Part]:
        layers = self._layers_at_once()
        copied = max((array.num_bytes for array in layer.saved if array.gathered), default=0)
        return [
            Part("saved activations", layer.saved_bytes * self._layers_kept()),
            Part("copy of saved", copied * layers, transient=True, what="gathered inputs, put into another order"),
        ]

    def _layers_at_once(self) -> int:
        """Layers whose activations are kept together: all, or those of a pipeline's piece."""
        model = self.config.model
        ids = self.place.layer_ids(model.num_stacked)
        return model.num_layers if ids is None else ids.shape[2] * (model.moe.every if model.moe else 1)

    def _layers_kept(self) -> int:
        """Layers whose activations a device holds in all: of the passes that wait, and of the one at work."""
        waiting = pipeline_plan(self.place).num_kept if self.place.layout.pipeline else 0
        return self._layers_at_once() * (waiting + 1)

    def _loss(self) -> int:
        """Logits of one chunk of tokens, float32, their gradient, and the stream before and after."""
        tokens = self.rows * (self.length // self.place.num_shards("length"))
        embed = self.config.model.embed
        chunk = -(-tokens // num_chunks(tokens, embed))
        table = ArraySpec((self.config.model.vocab, embed), np.dtype(np.float32), ("vocab", "embed"))
        rows = local_shape(self.place, "use", table)[0]
        narrow = self._size if self._size < F32 else 0  # else the gradient takes the logits' place
        return chunk * rows * (F32 + narrow) + 3 * tokens * embed * self._size

    def _pipeline(self) -> list[Part]:
        """Slots of the schedule's plan, each one microbatch's residual stream."""
        plan = pipeline_plan(self.place)
        sizes = local_sizes(self.place, self.rows, self.length)
        slot = sizes.batch * sizes.stream * self.config.model.embed * self._size
        tape = 0
        if plan.num_tape:
            model = local_model(self.config.model, self.place)
            experts = ExpertCuts.of(self.place, self.config.model)
            of_layer = tape_bytes(model, sizes, self.place.layout.remat, self.config.precision.dtype, experts)
            tape = self._layers_at_once() * of_layer
        return [
            Part("pipeline slots", (max(plan.num_x, 1) + max(plan.num_dy, 1) + plan.num_y + 2) * slot),
            Part("pipeline tape", plan.num_tape * tape, what="for weight gradients that wait"),
            Part("tape at work", tape, transient=True, what="of one microbatch, before it has its slot"),
        ]


def _split(arrays: Named) -> tuple[Named, Named]:
    """(the stack of layers, the rest)."""
    layers = tuple((path, spec) for path, spec in arrays if spec.dims[0] in STACKS)
    return layers, tuple((path, spec) for path, spec in arrays if spec.dims[0] not in STACKS)
