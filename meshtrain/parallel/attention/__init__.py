"""How does a query reach the keys that it may see, on this device and on others?"""

from meshtrain.parallel.attention.attend import SCHEMES, attend
from meshtrain.parallel.attention.mask import Mask, visible

__all__ = ["SCHEMES", "Mask", "attend", "visible"]
