"""The page in a real browser: every section is drawn, controls change it, nothing is fetched, nothing complains."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from meshtrain.run.page import render
from meshtrain.run.page.words import WORDS
from tests.run.page import pages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.slow
HANGUL = re.compile("[가-힣]")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as started:
        # A sandbox needs a user that is not root; the page is our own.
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Shown:
    """A page in the browser, with all that it complained of or asked for."""

    def __init__(self, browser: Any, file: Path, width: int = 1280):
        self.troubles: list[str] = []
        self.page = browser.new_page(viewport={"width": width, "height": 900})
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.goto(file.as_uri())

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.troubles.append(url)

    def section(self, name: str) -> Any:
        return self.page.locator(f"#{name}")

    def text(self, name: str) -> str:
        return str(self.section(name).inner_text())

    def choose(self, name: str, value: str) -> None:
        self.page.locator(f'input[name="{name}"][value="{value}"]').check(force=True)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def close(self) -> None:
        self.page.close()
        assert not self.troubles


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    shown: list[Shown] = []

    def make(data: dict[str, Any], width: int = 1280) -> Shown:
        file = tmp_path / "report.html"
        file.write_text(render(data))
        shown.append(Shown(browser, file, width))
        return shown[-1]

    yield make
    for one in shown:
        one.close()


ALWAYS = ("memory", "time", "decisions", "holders", "groups", "tensor", "ledger", "notes")


@pytest.mark.parametrize(
    ("case", "others"),
    [("dense", ()), ("pipeline", ("pipeline",)), ("context", ("balance",)), ("experts", ()), ("many", ("pipeline",))],
)
def test_every_section_is_drawn(show: Any, case: str, others: tuple[str, ...]) -> None:
    one = show(pages.data(case))
    told = pages.data(case)["time"]
    assert {f"cause.{cause}" for cause in (*told["parts"], *told["hidden"])} <= set(WORDS)
    for name in (*ALWAYS, *others):
        assert one.section(name).is_visible(), name
        assert len(one.section(name).locator(".part > *").all()) > 0, name
    for name in {"pipeline", "balance"} - set(others):
        assert not one.section(name).is_visible()
    assert one.overflow() <= 0
    assert not re.search(r"undefined|NaN|\{\w+\}", one.page.inner_text("body"))


@pytest.mark.parametrize("case", ["dense", "context", "many"])
def test_a_narrow_window_is_enough(show: Any, case: str) -> None:
    one = show(pages.data(case), width=400)
    assert one.overflow() <= 0


def test_memory_by_stage(show: Any) -> None:
    one = show(pages.data("dense"))
    bars = one.section("memory").locator(".bar-row")
    assert bars.count() == 4
    assert bars.nth(3).get_attribute("aria-checked") == "true"
    before = one.section("memory").locator(".detail").inner_text()
    bars.nth(0).press("Enter")
    assert bars.nth(0).get_attribute("aria-checked") == "true"
    assert one.section("memory").locator(".detail").inner_text() != before


def test_who_holds_what(show: Any) -> None:
    """Slices and holders as placement has them: of 16 devices as 8 x 2, an array cut over both axes has one holder."""
    one = show(pages.data("dense"))
    section = one.section("holders")
    arrays = {
        array["path"]: i for i, array in enumerate(pages.data("dense")["arrays"]["list"]) if array["kind"] == "params"
    }
    section.locator("select").select_option(str(arrays["layers/mlp/up"]))
    section.locator('[data-device="5"]').click()
    text = section.inner_text()
    assert "embed [1,024 : 1,536]" in text
    assert "mlp [7,168 : 14,336]" in text
    assert section.locator(".device.same").count() == 1
    section.locator("select").select_option(str(arrays["final_norm/scale"]))
    assert section.locator(".device.same").count() == 2
    section.locator('input[type="number"]').fill("15")
    section.locator('input[type="number"]').press("Enter")
    assert section.locator('[data-device="15"]').get_attribute("aria-pressed") == "true"


def test_groups_by_axis(show: Any) -> None:
    one = show(pages.data("dense"))
    section = one.section("groups")
    one.choose("axis", "tensor")
    assert section.locator(".device.same").count() == 2
    assert "fast link" in section.inner_text()
    one.choose("axis", "data")
    assert section.locator(".device.same").count() == 8
    assert "network" in section.inner_text()
    assert section.locator(".node").count() == 2


def test_many_devices_are_drawn_by_node(show: Any) -> None:
    assert len(render(pages.data("many"))) < 600_000  # bytes or so: no larger than the page of a few
    one = show(pages.data("many"))
    for name in ("holders", "groups"):
        assert one.section(name).locator(".square").count() == 2048
        assert one.section(name).locator(".device").count() == 8
    one.choose("axis", "stage")
    assert one.section("groups").locator('.square:not([data-same="0"])').count() == 16
    one.section("groups").locator(".square").nth(40).click()
    assert one.section("groups").locator('[data-device="320"]').get_attribute("aria-pressed") == "true"


def test_tensor_parallelism_by_degree_and_link(show: Any) -> None:
    text = show(pages.data("many")).text("tensor")
    assert "not possible: this link joins 8 devices" in text
    assert "2.09 ms" in text  # THEORY's row: TP 8 on NVLink
    assert "18.8 ms" in text  # and on 400 Gb/s


def test_the_schedule(show: Any) -> None:
    one = show(pages.data("pipeline"))
    section = one.section("pipeline")
    table = pages.data("pipeline")["pipeline"]["tables"]
    assert section.locator(".op").count() == len(table["locked"]["ops"]) // 5
    one.choose("form", "free")
    assert section.locator(".op").count() == len(table["free"]["ops"]) // 5
    one.choose("zoom", "large")
    assert section.locator(".op-name").first.text_content() == "0"
    section.locator(".op").first.hover()
    assert "stage 0, tick 0: forward of microbatch 0" in section.inner_text()


def test_context_is_balanced_by_the_zigzag(show: Any) -> None:
    text = show(pages.data("context")).text("balance")
    assert "Zigzag: the busiest shard has 1.00 times the mean" in text


def test_the_ledger_sorts_and_filters(show: Any) -> None:
    one = show(pages.data("dense"))
    section = one.section("ledger")
    rows = section.locator("tbody tr")
    number = rows.count()
    assert number == len(pages.data("dense")["traffic"]["lines"])
    first = rows.first.inner_text()
    section.locator('[data-sort="seconds"]').click()
    assert section.locator('th[aria-sort="ascending"]').count() == 1
    assert rows.first.inner_text() != first
    section.locator("select").nth(1).select_option("all_gather")
    assert 0 < rows.count() < number
    section.locator('input[type="search"]').fill("nothing is called this")
    assert rows.count() == 0


def test_the_other_language(show: Any) -> None:
    """Every label changes: what has English words of ours left is the planner's or the user's, and says so."""
    one = show(pages.data("pipeline"))
    one.choose("language", "ko")
    assert one.page.evaluate("document.documentElement.lang") == "ko"
    for place in one.page.locator("h2, .lead, .contents a, th, legend, figcaption, .tile-name, .fact dt").all():
        text = place.inner_text().strip()
        assert not text or HANGUL.search(text) or text in ("MFU", "TP", "All-reduce ↕", "All-reduce"), text
    one.choose("language", "en")
    assert not HANGUL.search(one.page.locator("main").inner_text())


def test_an_audit(show: Any) -> None:
    one = show(pages.audited())
    ledger = one.section("ledger")
    assert ledger.locator(".status.surprising").count() > 0
    ledger.locator("select").nth(2).select_option("missing")
    assert ledger.locator("tbody tr").count() == ledger.locator(".status.missing").count() > 0
    assert "compiler" in one.text("memory")
    assert one.section("memory").locator(".mark.compiled").count() == 1
    assert "Large copies" in one.text("notes")
