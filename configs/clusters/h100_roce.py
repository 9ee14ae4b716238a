"""H100 80 GB SXM, 8 a node on NVLink, 400 Gb/s RoCE a GPU: the machine of The Llama 3 Herd of Models (2024).

Peak, memory and NVLink: NVIDIA's data sheet (dense figures). Failures: section 3.3.4 of the paper.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            gpu="H100 SXM",
            gpus_per_node=8,
            fast_gpus=8,
            memory="80 GB",
            memory_rate="3.35 TB/s",
            peak=dict(bfloat16="989 TFLOP/s", float16="989 TFLOP/s", float32="494 TFLOP/s", float8="1979 TFLOP/s"),
            fast=dict(rate="900 GB/s both ways added per GPU", latency="4 us"),
            network=dict(rate="400 Gb/s one way per GPU", latency="10 us"),
            shares=dict(
                matmul=(0.64, "large bf16 products at 700 W, about 630 TFLOP/s; gives table 4 of the paper to 10 %"),
                memory=(0.85, "STREAM-like kernels on HBM3"),
                fast=(0.80, "NCCL tests: bus bandwidth of a large all_reduce over 8 GPUs, 360 of 450 GB/s"),
                node=(0.80, "as fast: all GPUs of a node share NVLink"),
                network=(0.80, "NCCL tests over 400 Gb/s adapters, about 40 of 50 GB/s a GPU"),
            ),
            failures="419 failures in 54 days on 16384 GPUs",
            xla_flags=["--xla_gpu_enable_latency_hiding_scheduler=true"],
        )
    )
