"""Eight virtual CPU devices on a laptop's two cores: each has an eighth of the memory and of the arithmetic.

Measured with AVX-512 cores: float32 products at 150 to 200 GFLOP/s and bfloat16 at 130 to 170 on both together (JAX
0.10). What devices send each other is a copy in memory.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            gpu="virtual CPU device",
            gpus_per_node=8,
            fast_gpus=8,
            memory="2 GB",
            memory_rate="2.5 GB/s",
            peak=dict(float32="25 GFLOP/s", bfloat16="21 GFLOP/s"),
            fast=dict(rate="1.2 GB/s one way per GPU", latency="50 us"),
            network=dict(rate="1 Gb/s one way per node", latency="200 us"),
            shares=dict(
                matmul=(0.85, "measured: 170 of 200 GFLOP/s"),
                memory=(0.80, "estimate"),
                fast=(0.80, "estimate"),
                node=(0.80, "estimate"),
                network=(0.80, "estimate: Ethernet between two laptops"),
            ),
        )
    )
