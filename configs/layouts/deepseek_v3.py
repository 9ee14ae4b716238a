"""DeepSeek-V3 as published (Technical Report, section 3): PP 16 x EP 64 over 8 nodes x ZeRO-1, no tensor parallelism.

For 2,048 H800 in nodes of 8. The 64 devices of a stage that share the experts out also share the batch out: expert
parallelism is folded on the data axes, so that a token travels inside its node first, then to other nodes. Optimizer
and gradients of dense weights lie on all 128 data-parallel devices; those of an expert on its `data` copies.
Of the report, not here: DualPipe (1F1B instead) and routing to at most 4 nodes without dropping: here an expert takes
at most twice its even share of a row.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1, stage=16, node=8, gpu=8),
            rules=dict(batch=("data", "node", "gpu"), expert=("node", "gpu"), layers="stage"),
            optimizer=dict(embed=("data", "node", "gpu"), expert_embed="data"),
            pipeline=dict(
                schedule="1f1b", microbatches=120, layers=[1, *[4] * 12, 3, 3, 3]
            ),  # of 58; 3 dense ones first
            experts=dict(dispatch="capacity", capacity_factor=2.0),
        )
    )
