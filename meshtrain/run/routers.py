"""What the routers of a step say, as a record: summaries of all layers, numbers of each, and the load of each expert.

A layer's number counts the layers with experts from 0. The loads, as lists, are for the record of steps that are logged
alone: one number for each expert of each layer.
"""

from typing import Any

import numpy as np


def router_record(routers: dict[str, np.ndarray], with_load: bool) -> dict[str, Any]:
    """`moe/NAME` of all layers (the largest max_over_mean, the mean of the others), `moe/NAME/LAYER`, and with_load
    `moe/load/LAYER`, each expert's share of the pairs. Names as in `step.routing.router_metrics`."""
    record: dict[str, Any] = {}
    scalars = {name: np.asarray(value, float) for name, value in routers.items() if name != "load"}
    for name, by_layer in scalars.items():
        record[f"moe/{name}"] = float(by_layer.max() if name == "max_over_mean" else by_layer.mean())
    for name, by_layer in scalars.items():
        record |= {f"moe/{name}/{layer}": float(value) for layer, value in enumerate(by_layer)}
    if with_load:
        for layer, load in enumerate(routers["load"]):
            record[f"moe/load/{layer}"] = [round(float(share), 6) for share in load]
    return record
