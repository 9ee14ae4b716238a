"""A100 80 GB SXM, 8 a node on NVLink, 200 Gb/s InfiniBand (HDR) a GPU: NVIDIA's Selene and many clouds.

Peak, memory and NVLink: NVIDIA's data sheet (dense figures). The shares of matmul and memory and NVLink's latency (of
an eager program's messages, waiting included) are rounded from fits of `scripts/calibrate.py` to measured steps (arXiv
2205.05198, table 5, and a third of vTrain's runs).
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            gpu="A100 SXM",
            gpus_per_node=8,
            fast_gpus=8,
            memory="80 GB",
            memory_rate="2.039 TB/s",
            peak=dict(bfloat16="312 TFLOP/s", float16="312 TFLOP/s", float32="156 TFLOP/s"),
            fast=dict(rate="600 GB/s both ways added per GPU", latency="18 us"),
            network=dict(rate="200 Gb/s one way per GPU", latency="20 us"),
            shares=dict(
                matmul=(0.83, "rounded from scripts/calibrate.py; large fp16 products reach about 265 TFLOP/s"),
                memory=(0.75, "rounded from scripts/calibrate.py"),
                fast=(0.77, "NCCL tests: bus bandwidth of a large all_reduce over 8 GPUs, 230 of 300 GB/s"),
                node=(0.77, "as fast: all GPUs of a node share NVLink"),
                network=(0.80, "NCCL tests over HDR, about 20 of 25 GB/s a GPU"),
            ),
            xla_flags=["--xla_gpu_enable_latency_hiding_scheduler=true"],
        )
    )
