"""Where does each array live? Dims, rules that map them to mesh axes, the mesh, and the layout on it."""

from meshtrain.layout.array import ArraySpec, Tree, map_specs, named_specs, path_name
from meshtrain.layout.dims import DIMS
from meshtrain.layout.finding import Finding
from meshtrain.layout.layout import Layout
from meshtrain.layout.mesh import MeshShape, abstract_mesh, build_mesh
from meshtrain.layout.placement import Placement, place, place_abstract, single_placement
from meshtrain.layout.rules import Rules

__all__ = [
    "DIMS", "ArraySpec", "Finding", "Layout", "MeshShape", "Placement", "Rules", "Tree", "abstract_mesh",
    "build_mesh", "map_specs", "named_specs", "path_name", "place", "place_abstract", "single_placement",
]  # fmt: skip
