"""DGX-2H: 16 V100 32 GB on NVSwitch, 100 GB/s between servers: the machine of Megatron-LM (arXiv 1909.08053).

Section 5 of the paper: 300 GB/s between GPUs inside a server (both ways), 100 GB/s between servers by 8 InfiniBand
adapters. V100s have no bfloat16. Peak and memory: NVIDIA's data sheet.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            gpu="V100 SXM3",
            gpus_per_node=16,
            fast_gpus=16,
            memory="32 GB",
            memory_rate="900 GB/s",
            peak=dict(float16="125 TFLOP/s", float32="15.7 TFLOP/s"),
            fast=dict(rate="300 GB/s both ways added per GPU", latency="10 us"),
            network=dict(rate="100 GB/s one way per node", latency="20 us"),
            shares=dict(
                matmul=(0.70, "estimate; the paper's single GPU sustains 39 TFLOP/s, 30 % of its peak, in all"),
                memory=(0.80, "estimate"),
                fast=(0.80, "estimate: NCCL over NVSwitch"),
                node=(0.80, "as fast: all GPUs of a node share NVSwitch"),
                network=(0.80, "estimate: NCCL over EDR InfiniBand"),
            ),
        )
    )
