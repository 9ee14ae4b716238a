"""Where does each array live? Dims, rules that map them to mesh axes, the mesh, and the layout on it."""

from meshtrain.layout.array import ArraySpec, Tree, map_specs, named_specs, path_name
from meshtrain.layout.dims import DIMS
from meshtrain.layout.layout import Layout
from meshtrain.layout.mesh import MeshShape, build_mesh
from meshtrain.layout.placement import Placement, place, single_placement
from meshtrain.layout.rules import Rules

__all__ = [
    "DIMS", "ArraySpec", "Layout", "MeshShape", "Placement", "Rules", "Tree",
    "build_mesh", "map_specs", "named_specs", "path_name", "place", "single_placement",
]  # fmt: skip
