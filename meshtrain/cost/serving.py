"""How vLLM should serve a model on a cluster: sizes of tensor, pipeline, data and expert parallelism, and why.

    fits one GPU, with room for sequences  -> replicas; fits one node -> tensor = its GPUs; else stages = nodes
    no fast links                          -> stages in place of tensor parallelism
    experts                                -> dealt out over tensor x data; data in place of tensor, where that holds
                                              many more sequences: latent attention's cache is whole on each tensor part

The room that weights leave is the KV cache: 2 x kv_heads x head_dim numbers a token and layer, cut over the tensor
parts as long as there are key heads; of latent attention the latent and the rotated key, whole on each part.
"""

from dataclasses import dataclass, replace

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.state import count_expert_parameters
from meshtrain.errors import InputError
from meshtrain.layout.words import plural, size_text
from meshtrain.model import ModelConfig
from meshtrain.model.flops import count_parameters

UTILIZATION = 0.9  # vLLM's gpu_memory_utilization
BATCHED_TOKENS = 8192  # of a pass, whose activations need room beside weights and cache
WORTH = 1.5  # times as many sequences, so that fewer and wider replicas are worth it
ITEM = 2  # bytes of a weight and of a cache entry: bfloat16


@dataclass(frozen=True)
class Serving:
    """tensor, pipeline, data: sizes. expert_parallel: whether experts are dealt out over tensor x data. Bytes are of
    one GPU. sequences: full ones of `length` tokens at a time, of all replicas. decisions: what was said on the way."""

    tensor: int
    pipeline: int
    data: int
    expert_parallel: bool
    length: int
    weights: float
    room: float
    cache_per_token: float
    sequences: int
    decisions: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the caches of one replica hold."""
        return int(self.room / self.cache_per_token)

    @property
    def flags(self) -> tuple[str, ...]:
        """Arguments of `vllm serve MODEL`."""
        found = [
            f"--tensor-parallel-size {self.tensor}",
            f"--pipeline-parallel-size {self.pipeline}",
            f"--data-parallel-size {self.data}",
            "--dtype bfloat16",
            f"--max-model-len {self.length}",
            f"--gpu-memory-utilization {UTILIZATION}",
            f"--max-num-seqs {max(self.sequences // self.data, 1)}",
        ]
        return (*found, *(["--enable-expert-parallel"] if self.expert_parallel else []))


def serve(model: ModelConfig, cluster: Cluster, num_gpus: int, length: int) -> Serving:
    """The sizes for serving sequences of up to `length` tokens. InputError where the weights do not fit all GPUs."""
    return _Plan(model, cluster, num_gpus, length).decide()


def cache_bytes(model: ModelConfig, tensor: int) -> int:
    """Bytes of one token and layer in the cache of one tensor part."""
    if model.latent is not None:
        return (model.latent.kv_rank + model.latent.rope_dim) * ITEM
    return 2 * max(model.num_kv_heads // tensor, 1) * model.head_dim * ITEM


@dataclass(frozen=True)
class _Plan:
    model: ModelConfig
    cluster: Cluster
    num_gpus: int
    length: int

    def weights(self, tensor: int, pipeline: int, data: int) -> float:
        """Bytes of a GPU, with experts dealt out over tensor x data."""
        experts = count_expert_parameters(self.model)
        others = count_parameters(self.model) - experts
        return (others + experts / data) * ITEM / (tensor * pipeline)

    def at(self, tensor: int, pipeline: int, said: list[str], shared: bool = False) -> Serving:
        """What these sizes leave. shared: replicas share the experts out among them, as vLLM has it where they are one
        deployment; else each has all of them."""
        model = self.model
        data = max(self.num_gpus // (tensor * pipeline), 1)
        experts = model.moe is not None and tensor * data > 1
        weights = self.weights(tensor, pipeline, data if shared else 1)
        widest = 2 * model.mlp // tensor + 4 * model.embed
        room = UTILIZATION * self.cluster.memory.value - weights - BATCHED_TOKENS * widest * ITEM
        per_token = cache_bytes(model, tensor) * -(-model.num_layers // pipeline)
        at_once = max(int(room / (per_token * self.length)), 0)
        return Serving(
            tensor, pipeline, data, experts, self.length, weights, room, per_token, at_once * data, tuple(said)
        )  # fmt: skip

    def decide(self) -> Serving:
        """The order of decisions, and then where experts live."""
        said: list[str] = []
        found = self._sizes(said)
        if self.model.moe is None or found.tensor * found.data == 1:
            return found
        best = self.at(found.tensor, found.pipeline, said, shared=True)
        for tensor in (n for n in range(1, found.tensor) if found.tensor % n == 0):
            other = self.at(tensor, found.pipeline, said, shared=True)
            if other.sequences >= WORTH * best.sequences:
                said.append(
                    f"data={other.data} x tensor={tensor} holds {other.sequences:,} sequences at a time,"
                    f" {best.sequences:,} with data={best.data} x tensor={best.tensor}: the cache of a token is"
                    f" {size_text(other.cache_per_token)} on each tensor part, and experts are dealt out all the same"
                )
                best = other
                break
        said.append(
            f"experts: {size_text(count_expert_parameters(self.model) * ITEM)} of the weights, dealt out over tensor x"
            f" data = {best.tensor * best.data}, {size_text(best.weights)} of weights on each GPU"
        )
        return replace(best, decisions=tuple(said))

    def _sizes(self, said: list[str]) -> Serving:
        """Those of a model whose replicas have all of it."""
        one = self._try(said, "one GPU", 1, 1)
        if one.sequences:
            return self._wider(one, said)
        node, cluster = min(self.num_gpus, self.cluster.gpus_per_node), self.cluster
        fast = min(node, cluster.fast_gpus)
        tensor = max(n for n in range(1, fast + 1) if fast % n == 0 and self._divides(n))
        if cluster.fast_gpus == 1:
            said.append(f"{cluster.name} has no fast links (fast_gpus=1): stages in place of tensor parallelism")
        elif tensor < fast:
            said.append(
                f"tensor={fast} does not divide {self.model.num_heads} heads and {self.model.num_kv_heads} key heads:"
                f" tensor={tensor}"
            )
        for stages in (n for n in range(1, self.num_gpus // tensor + 1) if self.num_gpus // tensor % n == 0):
            if tensor * stages < node and stages > 1 and cluster.fast_gpus > 1:
                continue  # within a node there is a better way
            where = "one node" if tensor * stages <= node else f"{plural(tensor * stages // node, 'node')}"
            found = self._try(said, where, tensor, stages)
            if found.sequences:
                return found
        raise InputError(self._nothing())

    def _wider(self, one: Serving, said: list[str]) -> Serving:
        """A replica over two or more GPUs, where one only just fits."""
        best = one
        for number in (2, 4, 8):
            if (
                number > min(self.num_gpus, self.cluster.fast_gpus)
                or self.num_gpus % number
                or not self._divides(number)
            ):
                continue
            found = self.at(number, 1, said)
            if found.sequences >= WORTH * best.sequences:
                times = found.sequences / best.sequences
                said.append(
                    f"tensor={number} holds {found.sequences:,} sequences at a time, {times:.1f} times the"
                    f" {best.sequences:,} of tensor={best.tensor} (>= {WORTH}): less goes to copies of the weights"
                )
                best = self.at(number, 1, said)
        return self.at(best.tensor, 1, said)

    def _divides(self, tensor: int) -> bool:
        few = self.model.num_kv_heads % tensor and tensor % self.model.num_kv_heads
        return self.model.num_heads % tensor == 0 and (not few or self.model.latent is not None)

    def _try(self, said: list[str], where: str, tensor: int, pipeline: int) -> Serving:
        found = self.at(tensor, pipeline, said)
        sizes = f"tensor={tensor}, pipeline={pipeline}"
        usable = size_text(UTILIZATION * self.cluster.memory.value)
        room = f"room for {plural(found.sequences // found.data, 'sequence')} of {self.length:,} tokens"
        if found.room <= 0:
            room = "nothing is left"
        elif not found.sequences:
            room = f"{size_text(found.room)} left hold no sequence of {self.length:,} tokens"
        said.append(f"{where} ({sizes}): weights {size_text(found.weights)} of {usable} a GPU, {room}")
        return self.at(tensor, pipeline, said)

    def _nothing(self) -> str:
        weights = count_parameters(self.model) * ITEM
        all_gpus = UTILIZATION * self.cluster.memory.value * self.num_gpus
        need = -(-weights // (0.85 * UTILIZATION * self.cluster.memory.value))
        return (
            f"--gpus: {plural(self.num_gpus, 'GPU')} of {self.cluster.name} do not hold the model and one sequence of"
            f" {self.length:,} tokens: weights {size_text(weights)} of {size_text(all_gpus)} in all. About"
            f" {plural(int(need), 'GPU')} would hold the weights with some room; or take a shorter data.length, or GPUs"
            " with more memory."
        )
