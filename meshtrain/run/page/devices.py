"""The mesh, its nodes and links, and who holds what: enough for the page to work out any device's part of any array.

Of a device nothing is stored: its place in the mesh follows from its number, and its part of an array from the axes
that cut it. So the page of 16,384 devices is no larger than that of 8.
"""

from typing import Any

from meshtrain.cost.links import group_of, strides, wire
from meshtrain.layout.inventory import KINDS
from meshtrain.layout.order import num_chunks
from meshtrain.layout.placement import LAYERS
from meshtrain.layout.roles import roles
from meshtrain.layout.table import Row, gathered, rows
from meshtrain.run.config import RunConfig
from meshtrain.run.plan.report import PlanReport


def mesh_section(report: PlanReport) -> dict[str, Any]:
    """Axes in order, slowest-changing first, each with its role and the link that its groups run on."""
    place, cluster = report.place, report.cluster
    said, apart = roles(place), strides(place.axis_sizes)
    axes = []
    for name, size in place.axis_sizes.items():
        group = group_of(place.axis_sizes, [name], cluster)
        link = wire(group, cluster) if size > 1 else None
        axes.append(
            {
                "name": name,
                "size": size,
                "stride": apart[name],
                "roles": said.get(name, []),
                "in_fast": group.in_fast,
                "in_node": group.in_node,
                "link": link.link if link else None,
                "rate": link.rate if link else None,
            }
        )
    return {"axes": axes, "fast": cluster.fast_gpus, "node": cluster.gpus_per_node}


def arrays_section(config: RunConfig, report: PlanReport) -> dict[str, Any]:
    """Every array by class: dims, whole and local sizes, the axes that cut each dim, bytes on one device."""
    place = report.place
    weights = [path for path, _ in report.arrays.params]
    found = []
    for kind in KINDS:
        table = rows(place, kind, report.arrays.named(kind))
        found += gathered(table, weights) if kind == "optimizer" else table
    ids = place.layer_ids(config.model.num_stacked)
    stages = None if ids is None else [[int(layer) for layer in of_stage.reshape(-1)] for of_stage in ids]
    return {
        "list": [_array(row) for row in found if row.dims],
        "stage_layers": stages,  # of each stage, the layers in the order that they lie there; -1: a spare slot
        "stack": LAYERS,
        "zigzag": num_chunks(place)[1] > 1,  # positions are columns of a batch whose tokens were dealt out in a zigzag
    }


def _array(row: Row) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "path": row.path,
        "dims": [
            {"name": dim, "size": size, "local": local, "axes": list(axes)}
            for dim, size, local, axes in zip(row.dims, row.shape, row.local, row.axes, strict=True)
        ],
        "dtype": row.dtype,
        "bytes": row.num_bytes,
        "count": row.count,
    }
