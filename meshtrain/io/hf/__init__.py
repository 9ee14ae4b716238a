"""How do weights come in from Hugging Face files, and go out as such? Both directions from one table per family."""

from meshtrain.io.hf.folder import Folder, is_folder, open_folder
from meshtrain.io.hf.reading import read_params

__all__ = ["Folder", "is_folder", "open_folder", "read_params"]
