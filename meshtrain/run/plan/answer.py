"""`Answer`: what the door `plan` says, as text and as JSON: of a layout that was given, of a search, or of serving."""

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from meshtrain.cost.cluster import Cluster
from meshtrain.cost.decisions import Outcome
from meshtrain.cost.serving import serve
from meshtrain.errors import InputError
from meshtrain.run.config import Request, RunConfig
from meshtrain.run.plan import report, search, serving
from meshtrain.run.plan.text import plan_text


@dataclass(frozen=True)
class Answer:
    """text and json make the two forms; page, the data of the third (run/page); write, the layout file that was found;
    fits, whether it runs at all."""

    text: Callable[[], str]
    json: Callable[[], dict[str, Any]]
    page: Callable[[], dict[str, Any]]
    write: Callable[[str], None]
    fits: bool = True


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Garbage is left while this runs: a search traces many layers, and looking for cycles in them takes a fifth of its
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@without_collection()
def answer(request: Request, cluster: Cluster, num_devices: int, searching: bool, serves: bool) -> Answer:
    """What is asked for. InputError where nothing fits, devices do not factor, or the layout is wrong."""
    config = request.config
    if serves:
        plan = serve(config.model, cluster, num_devices, config.data.length)
        return Answer(lambda: serving.text(plan), lambda: serving.as_json(plan), _no_page, _nothing)
    if not searching:
        found = report.make_plan_report(config, request.layout, request.layout_name, cluster, num_devices)
        return Answer(
            lambda: plan_text(found),
            lambda: report.as_json(found),
            lambda: _page(config, found, None),
            _nothing,
            found.memory.peak <= found.limit,
        )
    outcome = search.search_layout(config, cluster, num_devices)
    choice = outcome.best.choice
    of_best = report.make_plan_report(config, choice.layout(search.NAMES), "found", cluster, num_devices)
    return Answer(
        lambda: search.search_text(outcome) + "\n\n" + plan_text(of_best),
        lambda: search.as_json(outcome) | {"plan": report.as_json(of_best)},
        lambda: _page(config, of_best, outcome),
        lambda path: search.write_layout(path, choice, config.workdir, cluster, num_devices),
    )


def _page(config: RunConfig, of_layout: report.PlanReport, outcome: Outcome | None) -> dict[str, Any]:
    from meshtrain.run.page.data import page_data  # most plans are read as text

    return page_data(config, of_layout, outcome)


def _no_page() -> dict[str, Any]:
    raise InputError("--html: there is no page about serving; leave --serving out.")


def _nothing(path: str) -> None:
    raise InputError(f"--write={path}: nothing was searched for.")
