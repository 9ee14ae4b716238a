"""One device, or every device with the whole model and the whole batch: the reference that all layouts must equal.

Use it to debug, and as the thing to compare with. It takes any number of devices and uses them all alike.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
    return ConfigDict(
        dict(
            mesh=dict(data=-1),
            rules=dict(batch=None),  # declares that the copies are meant: without it `show` warns of idle devices
        )
    )
