"""`Software`: what the program that runs on a machine does well or badly: the few constants that are not the machine's.

The same physics holds for every profile: products against the peak, everything else against memory, collectives
against links, and a host that must start all of it. `scripts/calibrate.py` fits MEGATRON_2022's to measured steps and
prints how well every measured run comes out; no constant belongs to one row.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Software:
    """Constants of a training program. Bytes and seconds are plain numbers here; shares are of the machine's figures.

    half_size: a product's share of the peak is lost as size / (size + half_size) for each of its three sizes (tiles and
    their pipelines fill up). kernel: seconds to start one product. attention_share: of the peak, in the two products of
    attention. writes_scores: whether attention's scores go through memory; score_bytes: then for each score, forward
    and backward. square: whether masked scores are computed. logit_bytes: for each logit, forward and backward.
    attention_backward: FLOPs of attention's backward pass over its forward pass. host_*: seconds that the host needs
    to start one pass of a layer, one collective in it, the output layer, and one microbatch; a device with less to do
    waits for it. redoes_all: whether a recomputed layer is computed to its very end.
    replays: whether the backward pass of a pipeline's piece starts from the piece's input, with its forward pass again,
    unless the layout keeps residuals; the last piece then has no forward pass of its own.
    gradient_bytes: of one gradient as it is reduced. overlaps_data: whether gradients are reduced while the backward
    pass goes on. scatters_sends: whether the tensor group shares out what a pipeline sends. lock_step: whether stages
    go from tick to tick together; the last one then makes the loss in its backward pass. update_bytes: read and written
    for one parameter in the update; update_seconds: its part that depends on nothing. groups_rows: whether a product of
    rows with the matrix of their expert costs what the rows that are there cost; else all rows of the buffer are
    multiplied with the matrix of each expert of the device.
    """

    name: str
    half_size: float
    kernel: float
    attention_share: float
    attention_backward: float
    writes_scores: bool
    square: bool
    score_bytes: tuple[float, float]
    logit_bytes: tuple[float, float]
    host_layer: float
    host_collective: float
    host_output: float
    host_microbatch: float
    redoes_all: bool
    replays: bool
    gradient_bytes: float
    overlaps_data: bool
    scatters_sends: bool
    lock_step: bool
    update_bytes: float
    update_seconds: float
    groups_rows: bool = True


# PyTorch run eagerly, scores in memory: Megatron-LM and Megatron-DeepSpeed of 2021 to 2023. score_bytes, of 16 bits:
# written, read and written by the fused softmax and by dropout (and its mask), read; backward alike, with gradients.
# half_size, the host's seconds and the update's are rounded from fits; attention_share is an estimate.
MEGATRON_2022 = Software(
    name="megatron_2022",
    half_size=36.0,
    kernel=5e-6,
    attention_share=0.45,
    attention_backward=2.0,
    writes_scores=True,
    square=True,
    score_bytes=(13.0, 20.0),
    logit_bytes=(20.0, 20.0),
    host_layer=1.0e-3,
    host_collective=34e-6,
    host_output=1.2e-3,
    host_microbatch=3.8e-3,
    redoes_all=True,
    replays=False,
    gradient_bytes=2.0,
    overlaps_data=False,
    scatters_sends=True,
    lock_step=False,
    update_bytes=40.0,
    update_seconds=0.9e-3,
)

# This trainer: one compiled program, so the host starts nothing layer by layer; fused attention with a causal mask,
# whose backward pass computes the scores again (5 products for 2); the loss by chunks of tokens; stages in lock step.
# groups_rows: read off H100 programs of JAX 0.10.2, whose compiler turns a ragged product into a dense one.
MESHTRAIN = Software(
    name="meshtrain",
    half_size=45.0,
    kernel=5e-6,
    attention_share=0.5,
    attention_backward=2.5,
    writes_scores=False,
    square=False,
    score_bytes=(0.0, 0.0),
    logit_bytes=(10.0, 6.0),
    host_layer=0.0,
    host_collective=0.0,
    host_output=0.0,
    host_microbatch=0.0,
    redoes_all=False,
    replays=True,
    gradient_bytes=2.0,
    overlaps_data=True,
    scatters_sends=False,
    lock_step=True,
    update_bytes=34.0,
    update_seconds=0.5e-3,
    groups_rows=False,
)
