"""What will it cost? Memory, traffic, bubble and time of a step, and which layout is best; no device is needed."""

from meshtrain.cost.cluster import Cluster, Link, Share

__all__ = ["Cluster", "Link", "Share"]
