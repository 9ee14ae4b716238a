"""H200 141 GB SXM, 8 a node on NVLink, 400 Gb/s InfiniBand (NDR) a GPU. The H100's arithmetic with more memory.

Peak, memory and NVLink: NVIDIA's data sheet (dense figures). The shares are those of h100_roce.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            gpu="H200 SXM",
            gpus_per_node=8,
            fast_gpus=8,
            memory="141 GB",
            memory_rate="4.8 TB/s",
            peak=dict(bfloat16="989 TFLOP/s", float16="989 TFLOP/s", float32="494 TFLOP/s", float8="1979 TFLOP/s"),
            fast=dict(rate="900 GB/s both ways added per GPU", latency="4 us"),
            network=dict(rate="400 Gb/s one way per GPU", latency="8 us"),
            shares=dict(
                matmul=(0.64, "as h100_roce: the same arithmetic units and power"),
                memory=(0.85, "as h100_roce"),
                fast=(0.80, "as h100_roce"),
                node=(0.80, "as h100_roce"),
                network=(0.85, "NCCL tests over NDR, about 42 of 50 GB/s a GPU"),
            ),
            xla_flags=["--xla_gpu_enable_latency_hiding_scheduler=true"],
        )
    )
