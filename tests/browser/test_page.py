"""The page and the report, of runs that are over or that a test writes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.html_report import write_report
from tests.browser.conftest import AXE, Tab, faults_of, until
from tests.browser.runs import append_events, rows
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.browser
MakeTab = Callable[..., Tab]
PATIENCE = 1_000 * PATIENCE_SECONDS
REPORT_SECONDS, REPORT_BYTES = 3.0, 8e6
HEAP_BYTES = 50e6


def opened(tab: Tab, url: str) -> Any:
    tab.page.goto(url)
    tab.page.wait_for_selector("#learning .plot svg", timeout=PATIENCE)
    return tab.page


def heap(page: Any) -> float:
    """Bytes in use, once what nobody needs is gone."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    usage = session.send("Runtime.getHeapUsage")
    return sum(
        usage.get(key, 0) for key in ("usedSize", "embedderHeapUsedSize", "backingStorageSize")
    )


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window(address: str, tab: MakeTab, width: int) -> None:
    made = tab(width)
    page = opened(made, address)
    page.wait_for_selector(".responses li", timeout=PATIENCE)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    said = page.inner_text('[data-tile="supervised loss"]')
    assert "0.5" in said and "nats per token after 3 updates on rows, 2.5" in said
    page.locator("#logs summary").click()
    until(page, "document.querySelector('.log').textContent.includes('a line')")
    made.shot(f"page-{width}")


def test_what_models_and_servers_say_is_text(address: str, tab: MakeTab) -> None:
    page = opened(tab(), address)
    page.wait_for_selector(".responses li", timeout=PATIENCE)
    assert "<script>window.evil=1</script>" in page.inner_text(".responses li >> nth=0")
    assert "onerror" in page.inner_text("#news li.bad >> nth=0")
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.evil") is None
    assert "#" not in page.url, "the token is not left where people copy it"


def test_what_was_sampled_and_trained_on_is_set_apart_from_what_was_given(
    address: str, tab: MakeTab
) -> None:
    page = opened(tab(), address)
    page.wait_for_selector(".responses li", timeout=PATIENCE)
    first = page.locator(".responses > li >> nth=0")
    labels = first.locator("pre").evaluate_all("each => each.map((e) => e.ariaLabel)")
    assert labels == ["sampled, trained on", "given"] * 2 + ["sampled, trained on"]
    said = first.locator(".turn").all_inner_texts()
    assert "turn 1, sampled" in said[0] and "calls search_<img" in said[0]
    assert "sequence 2 begins" in said[3] and "turn 3, sampled" in said[4]
    colours = first.locator("pre").evaluate_all(
        "each => each.map((e) => getComputedStyle(e).borderLeftWidth)"
    )
    assert len(set(colours[::2])) == 1 and colours[0] != colours[1]
    failed = page.locator(".responses > li >> nth=2").locator(".turn .cut").all_inner_texts()
    assert len(failed) == 1 and failed[0].endswith(", failed")
    for number, words in ((4, "not trained on"), (6, "left out: its tool is gone")):
        untrained = page.locator(f".responses > li >> nth={number}")
        assert words in untrained.locator(".legend >> nth=0").inner_text()
        assert untrained.locator("pre.trained").count() == 0
    older = page.locator(".responses > li >> nth=1").locator("pre")
    assert older.evaluate_all("each => each.map((e) => e.ariaLabel)") == [
        "sampled, trained on",
        "given",
    ]


def test_the_same_prompt_is_compared_over_steps(address: str, tab: MakeTab) -> None:
    page = opened(tab(), address)
    page.wait_for_selector(".difference ins", timeout=PATIENCE)
    gone, new = (page.inner_text(f".difference {tag} >> nth=0") for tag in ("del", "ins"))
    assert (gone.strip(), new.strip()) != ("", "") and gone != new
    page.fill("#samples input", "step 4960.")
    until(page, "document.querySelectorAll('.groups li').length === 1")
    page.locator(".groups button").click()
    until(page, "document.querySelector('.group h3').textContent.includes('4960')")


def test_who_has_no_token_is_refused(address: str, chromium: Any) -> None:
    page = chromium.new_context(ignore_https_errors=True).new_page()
    page.goto(address.partition("#")[0] + "#wrong")
    until(page, "document.getElementById('state').textContent.includes('refused')")
    assert page.locator("#panels").inner_text() == ""
    page.context.close()


def test_all_plots_show_the_part_that_was_chosen(address: str, tab: MakeTab) -> None:
    page = opened(tab(), address)
    box = page.locator("#learning .plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    page.mouse.up()
    low, high = page.evaluate("live.zoom.range")
    assert 1_000 < low < high < 4_000
    page.keyboard.press("Tab")
    page.locator("#waits .plot").focus()
    page.keyboard.press("Escape")
    assert page.evaluate("live.zoom.range") is None
    for _ in range(2):  # to the newest, and to the one before
        page.keyboard.press("ArrowLeft")
    page.wait_for_selector("#waits .entry.at[data-step='4998']", timeout=PATIENCE)


def test_the_newest_of_many_measurements_is_marked(address: str, tab: MakeTab) -> None:
    page = opened(tab(), address)
    curve = page.locator("#learning path[stroke-dasharray='2 4']").get_attribute("d")
    marks = page.locator("#learning circle").evaluate_all(
        "each => each.map((e) => Number(e.getAttribute('cx')))"
    )
    assert 50 <= len(marks) <= 100
    assert max(marks) == float(curve.rpartition("L")[2].split()[0])


def test_a_day_takes_little_memory(day: Path, address: str, tab: MakeTab) -> None:
    """24 hours of a fleet, most of them while the page is open, and some thousand steps more."""
    page = opened(tab(), address)
    lines = 0
    with FilesTracker(day, step=5_000) as files:
        for hour in range(2, 24):
            lines += append_events(day, hour, hour + 1)
            for values in rows(5_000 + 100 * (hour - 2), 5_100 + 100 * (hour - 2)):
                files.step(values)
            newest = f"spot-{(hour + 1) * 240 - 1}"
            until(page, f"document.querySelector('#news li b').textContent === '{newest}'")
    until(page, "live.points.last('step') === 7199")
    used = heap(page)
    print(f"{lines:,} events and 2,200 steps while open: {used / 1e6:.1f} MB in use")
    assert used < HEAP_BYTES


def processor_seconds(page: Any) -> float:
    """Processor time of the process that draws the page, since its start."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float({metric["name"]: metric["value"] for metric in metrics}["ProcessTime"])


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (RLBOOST_AXE)")
@pytest.mark.parametrize("width", [1400, 390])
def test_no_serious_fault_of_accessibility(
    day: Path, address: str, tab: MakeTab, width: int
) -> None:
    for url in (address, write_report(day).as_uri()):
        page = opened(tab(width), url)
        page.wait_for_selector(".responses li", timeout=PATIENCE)
        # That is a fault for axe only while nothing is in it, as between two choices of samples.
        assert page.query_selector("pre[aria-label]:not([role])") is None
        assert faults_of(page) == [], url


def test_a_long_report_opens_soon(day: Path, tab: MakeTab) -> None:
    path, made = write_report(day), tab()
    assert path.stat().st_size < REPORT_BYTES
    began = time.monotonic()
    opened(made, path.as_uri())
    seconds, computed = time.monotonic() - began, processor_seconds(made.page)
    print(
        f"{path.stat().st_size / 1e6:.1f} MB, open after {seconds:.2f} s, {computed:.2f} s of CPU"
    )
    made.page.wait_for_selector(".responses li", timeout=PATIENCE)
    made.shot("report-1400")
    assert min(seconds, computed) < REPORT_SECONDS, "of a processor, where others use it, too"
