"""Goodput: which share of the hours paid for goes into training, where machines fail, and how often to save.

    lost = saving + work since the last checkpoint, done again + finding the failure and starting again

A failure of one GPU stops all, so the time between failures is shared out among them. Best interval between checkpoints
by Young (1974), first order: sqrt(2 x time to save x time between failures); Daly (2006) adds the next terms.
"""

import math
from dataclasses import dataclass

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.quantity import Seconds
from meshtrain.errors import InputError

HOUR = 3600.0


@dataclass(frozen=True)
class Goodput:
    """between_failures: mean seconds from one failure of any GPU to the next. interval: seconds from one checkpoint to
    the next; advised: the best one (Daly). saving, again, restarting: lost shares of the time. share: what is left.
    """

    between_failures: float
    interval: float
    advised: float
    saving: float
    again: float
    restarting: float

    @property
    def share(self) -> float:
        """Of the time, what goes into steps that count."""
        return 1 - self.saving - self.again - self.restarting


def advised_interval(save: Seconds, between_failures: Seconds) -> Seconds:
    """Seconds of work between two checkpoints that lose least (Daly 2006, equation 37; Young's where saving is short).

    save: how long a step is held up by a checkpoint; of one written in the background only the copy counts.
    """
    delta, mean = save.value, between_failures.value
    if delta >= 2 * mean:
        return between_failures
    ratio = math.sqrt(delta / (2 * mean))
    return Seconds(math.sqrt(2 * delta * mean) * (1 + ratio / 3 + ratio**2 / 9) - delta)


def goodput(
    cluster: Cluster, num_gpus: int, save: Seconds, restart: Seconds, interval: Seconds | None = None
) -> Goodput:
    """What is left of the time on so many GPUs, with checkpoints every `interval` of work (default: the advised one).

    restart: from the failure to the first new step: to notice, to replace, to load, to compile. InputError where the
    cluster's file has no failure rate.
    """
    if cluster.failures is None:
        raise InputError(
            f"failures: the cluster {cluster.name} has no failure rate; write what was seen in its file, for example"
            " failures='419 failures in 54 days on 16384 GPUs'."
        )
    between = Seconds(HOUR / (cluster.failures * num_gpus))
    advised = advised_interval(save, between)
    chosen = advised if interval is None else interval
    cycle = chosen.value + save.value
    # A failure falls anywhere in a cycle: on average half of it is done again, and a restart is paid.
    return Goodput(
        between_failures=between.value,
        interval=chosen.value,
        advised=advised.value,
        saving=save.value / cycle,
        again=min(cycle / 2 / between.value, 1.0),
        restarting=min(restart.value / between.value, 1.0),
    )


@dataclass(frozen=True)
class Bill:
    """What a run costs: GPU-hours with what failures lose, and USD where the cluster's file has a price."""

    hours: float
    gpu_hours: float
    usd: float | None


def bill(cluster: Cluster, num_gpus: int, step: Seconds, num_steps: int, share: float = 1.0) -> Bill:
    """The bill of a run of so many steps. share: the goodput."""
    hours = step.value * num_steps / HOUR / share
    gpu_hours = hours * num_gpus
    return Bill(hours, gpu_hours, None if cluster.price is None else gpu_hours * cluster.price)
