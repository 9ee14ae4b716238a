"""L40S 48 GB, 8 a node on PCIe Gen4 without NVLink, 400 Gb/s a node: cheap memory and arithmetic, slow exchange.

Peak and memory: NVIDIA's data sheet (dense figures). A link that is shared by 8 GPUs: prefer pipeline stages to tensor
parallelism here.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            gpu="L40S",
            gpus_per_node=8,
            fast_gpus=1,
            memory="48 GB",
            memory_rate="864 GB/s",
            peak=dict(bfloat16="362 TFLOP/s", float16="362 TFLOP/s", float32="183 TFLOP/s", float8="733 TFLOP/s"),
            node=dict(rate="64 GB/s both ways added per GPU", latency="10 us"),
            network=dict(rate="400 Gb/s one way per node", latency="20 us"),
            shares=dict(
                matmul=(0.60, "estimate: 350 W hold the clock well below its boost in large products"),
                memory=(0.85, "estimate, as for other GPUs"),
                fast=(0.70, "not used: there is no fast link"),
                node=(0.70, "estimate: NCCL over PCIe switches, about 22 of 32 GB/s"),
                network=(0.80, "estimate, as for InfiniBand"),
            ),
        )
    )
