"""Steps that others measured: rows of a CSV file as models and splits, and how far a prediction is from each.

Columns: gpus, global_batch, micro_batch, embed, heads, layers, sequence, tensor, data, pipeline, step_ms; optional:
chunks (1), remat (full), sequence_parallel (0). The models are GPTs with an MLP of 4 x embed, GELU, LayerNorm and
biases, and a vocabulary of 51,200; ranks run tensor, data, pipeline, the first fastest (Megatron's order).
"""

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.links import group_of
from meshtrain.cost.software import MEGATRON_2022, Software
from meshtrain.cost.split import REDONE, Split
from meshtrain.cost.time import StepTime, predict
from meshtrain.errors import InputError
from meshtrain.model import ModelConfig

VOCAB = 51200  # GPT-2's 50,257 entries padded for up to 8 devices, as Megatron does


@dataclass(frozen=True)
class Measured:
    """A run: what the columns say; `seconds` of a step."""

    gpus: int
    global_batch: int
    micro_batch: int
    embed: int
    heads: int
    layers: int
    sequence: int
    tensor: int
    data: int
    pipeline: int
    seconds: float
    chunks: int = 1
    remat: str = "full"
    sequence_parallel: bool = False

    @property
    def model(self) -> ModelConfig:
        """The GPT."""
        return ModelConfig(
            num_layers=self.layers, embed=self.embed, num_heads=self.heads, num_kv_heads=self.heads,
            head_dim=self.embed // self.heads, mlp=4 * self.embed, vocab=VOCAB, max_length=self.sequence,
            norm="layer", activation="gelu", positions="learned", tied=True,
            mlp_bias=True, attention_bias=True, attention_output_bias=True,
        )  # fmt: skip

    def split(self, cluster: Cluster) -> Split:
        """How the run was shared out."""
        sizes = dict(pipeline=self.pipeline, data=self.data, inner=self.tensor)
        groups = {axis: group_of(sizes, [axis], cluster) for axis in sizes}
        number = self.pipeline * self.chunks
        schedule = "interleaved" if self.chunks > 1 else "1f1b"
        return Split(
            microbatch=self.micro_batch,
            num_microbatches=self.global_batch // (self.micro_batch * self.data),
            pieces=tuple(self.layers // number + (piece < self.layers % number) for piece in range(number)),
            cuts=dict.fromkeys(("heads", "kv_heads", "mlp", "vocab"), self.tensor),
            tensor=groups["inner"],
            stage=groups["pipeline"],
            reduce=groups["data"],
            sequence=self.sequence_parallel,
            batch_parts=self.data,
            num_devices=self.gpus,
            schedule=schedule if self.pipeline > 1 else None,
            remat=self.remat,
        )

    def predict(self, cluster: Cluster, software: Software = MEGATRON_2022) -> StepTime:
        """The run's step, in float16."""
        return predict(self.model, self.split(cluster), self.sequence, cluster, software, "float16")

    def error(self, cluster: Cluster, software: Software = MEGATRON_2022) -> float:
        """Predicted over measured time, less 1."""
        return self.predict(cluster, software).seconds / self.seconds - 1


# The columns that every file has beside step_ms: the fields from `gpus` to `pipeline`.
COUNTS = tuple(field.name for field in fields(Measured) if field.type is int and field.name != "chunks")


def read_measured(path: Path) -> list[Measured]:
    """The rows of a file, in its order. InputError for a column that is missing or a row that is none."""
    if not path.is_file():
        raise InputError(f"{path}: there is no such file of measured steps.")
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = [key for key in (*COUNTS, "step_ms") if not rows or key not in rows[0]]
    if missing:
        raise InputError(f"{path}: no column {', '.join(missing)}; the first line names the columns.")
    return [_row(row, f"{path}, line {line}") for line, row in enumerate(rows, 2)]


def _row(row: dict[str, str], where: str) -> Measured:
    try:
        counts = {key: int(row[key]) for key in COUNTS}
        chunks, sequence_parallel = int(row.get("chunks") or 1), bool(int(row.get("sequence_parallel") or 0))
        seconds = float(row["step_ms"]) / 1e3
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: {error}") from None
    remat = row.get("remat") or "full"
    if min(*counts.values(), chunks) < 1 or not seconds > 0 or remat not in REDONE:
        raise InputError(f"{where}: a value is out of range; remat is one of {', '.join(REDONE)}.")
    run = Measured(**counts, seconds=seconds, chunks=chunks, remat=remat, sequence_parallel=sequence_parallel)
    if run.tensor * run.data * run.pipeline != run.gpus:
        raise InputError(f"{where}: {run.gpus} GPUs are not tensor x data x pipeline.")
    if run.global_batch % (run.micro_batch * run.data):
        raise InputError(f"{where}: the global batch does not divide into microbatches.")
    return run
