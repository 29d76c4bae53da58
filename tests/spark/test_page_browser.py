"""The page in a real browser: on a desk and on a phone, in the light and in the dark, without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from ottla.bench.page.command import report as report_command
from ottla.bench.page.files import NotAResult, read_result, write_page
from ottla.bench.report import RESULTS
from tests.harness import bench_result
from tests.harness.chromium import Browser

WIDTHS = [1280, 390]
#: Of every element that has a text of its own: where it is, and where its text ends.
_OUTSIDE = """
[...document.body.querySelectorAll("*")].filter((element) => {
  const box = element.getBoundingClientRect();
  return getComputedStyle(element).clipPath === "none" && !element.closest("thead") && box.width > 0
    && (box.left < -1 || box.right > document.documentElement.clientWidth + 1);
}).map((element) => element.outerHTML.slice(0, 80))
"""
#: The contrast of a text to what is behind it, as WCAG defines it, of all texts below a bound.
_LOW_CONTRAST = """
(() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([red, green, blue]) => [red, green, blue].reduce((sum, part, at) => {
    const value = part / 255;
    return sum + [0.2126, 0.7152, 0.0722][at] * (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  }, 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parts(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  return [...document.body.querySelectorAll("*")].filter((element) =>
    !["SCRIPT", "STYLE"].includes(element.tagName) && element.getClientRects().length &&
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
  ).map((element) => {
    const [one, other] = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), element.outerHTML.slice(0, 80)];
  }).filter(([contrast]) => contrast < 4.5);
})()
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bench_result.write_result(tmp_path_factory.mktemp("results") / "20261122-120000-fail-over")


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return write_page(folder)


@pytest.fixture(scope="module")
def old_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the largest committed result, which has no series."""
    out = tmp_path_factory.mktemp("old")
    [result] = RESULTS.glob("2026-11-22-compare.json")
    done = CliRunner().invoke(report_command, [str(result), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return Path(done.output.strip())


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["page", "old_page"])
def test_everything_is_inside_and_can_be_read(browser, request, tmp_path, which, width, is_dark):
    path = request.getfixturevalue(which)
    browser.open(path, width=width, is_dark=is_dark)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(_OUTSIDE) == []
    assert browser.evaluate(_LOW_CONTRAST) == []
    browser.screenshot(tmp_path / "page.png")
    with Image.open(tmp_path / "page.png") as image:
        corner = image.convert("RGB").getpixel((1, 1))
    assert (sum(corner) < 3 * 64) is is_dark, corner


def test_nothing_but_the_page_itself_is_requested_and_its_script_runs_without_complaint(page):
    with Browser() as browser:
        browser.open(page, width=1280)
        assert browser.requests == [page.resolve().as_uri()]
        assert browser.complaints == []


def test_lines_are_drawn_where_their_values_are(browser, page):
    """The p99 of both targets hardly changes: 20 ms and 8 ms, on an axis that ends at 30 ms."""
    browser.open(page, width=1280)
    found = browser.evaluate(
        """[...document.querySelector(".chart").querySelectorAll(".strip")[1].querySelectorAll(".line")].map((line) => {
          const box = line.getBoundingClientRect(), plot = line.closest(".plot").getBoundingClientRect();
          return [(plot.bottom - box.bottom) / plot.height, box.width / plot.width];
        })"""
    )
    heights, widths = zip(*found, strict=True)
    assert heights == pytest.approx((20 / 30, 8 / 30), abs=0.02)
    assert min(widths) > 0.95


def test_the_pointer_shows_the_values_of_a_second(browser, page):
    browser.open(page, width=1280)
    box = browser.evaluate(
        """(() => { const plot = document.querySelector(".plot"); plot.scrollIntoView();
          const box = plot.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()"""
    )
    left, top, width, height = box
    browser.point_at(left + width * 5.5 / bench_result.SECONDS, top + height / 2)
    browser.wait_for("document.querySelector('.chart.read') !== null")
    assert shown(browser) == ["5 s", "5", "2", "20", "8", "0.04", "0.016"]
    browser.point_at(left + width * (bench_result.KILLED_S + 0.5) / bench_result.SECONDS, top + height / 2)
    assert shown(browser)[1:3] == ["\N{EN DASH}"] * 2


def test_the_keyboard_shows_them_too(browser, page):
    browser.open(page, width=390)
    browser.evaluate("document.querySelector('.chart').focus()")
    for _ in range(3):
        browser.press("ArrowRight")
    assert shown(browser)[:3] == ["2 s", "5", "2"]
    browser.press("Escape")
    assert set(shown(browser)) == {""}


def shown(browser):
    """The time and the values of the first chart."""
    return browser.evaluate(
        "[...document.querySelector('.chart').querySelectorAll('output')].map((each) => each.textContent)"
    )


def test_who_does_not_see_the_page_gets_tables_headings_and_charts_in_words(browser, page):
    # On a phone the rows of a table are blocks, and still rows.
    for width in WIDTHS:
        browser.open(page, width=width)
        names = browser.accessible_names()
        roles = [role for role, _ in names]
        assert roles.count("table") == 1
        assert roles.count("row") == 7
        assert ("rowheader", "producer: p99 ms") in names
        assert ("heading", "Fail-over under load") in names
        assert any(
            role == "figure" and "producer, p99: Kafka 20.0 ms, Ottla 8.0 ms" in name for role, name in names
        )


def test_pictures_of_the_same_are_written_beside_it(page, folder):
    found = {path.name: path for path in page.parent.glob("*.png")}
    assert set(found) == {"overview.png", "phase-1-fail-over.png"}
    for path in found.values():
        with Image.open(path) as image:
            colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
            assert image.width > 800
        # Ottla's is drawn, and Kafka's where both have lines.
        assert (0x0B, 0x6F, 0xC2) in colours
        assert ((0xC2, 0x57, 0x0C) in colours) is (path.name.startswith("phase"))


def test_a_folder_that_spark_has_written_is_read(spark, folder, tmp_path):
    """Parquet by Spark: a folder with its own file names, numbers of its own widths."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "summary.json").write_text((folder / "summary.json").read_text())
    frame = spark.read.parquet(str(folder / "seconds.parquet"))
    frame.write.parquet(str(copy / "seconds.parquet"))
    _, series = read_result(copy)
    key = ("target", "run", "second")
    assert sorted(series.seconds, key=lambda row: [row[name] for name in key]) == sorted(
        bench_result.seconds(), key=lambda row: [row[name] for name in key]
    )
    assert series.samples == []
    assert write_page(copy).read_text().count('class="chart"') == 2


@pytest.mark.parametrize(("text", "words"), [
    (None,                        "there is no"),
    ("no json",                   "is no result of a benchmark"),
    ("[]",                        "is no result of a benchmark"),
    ('{"format": 3}',             "is no result of a benchmark"),
    ('{"environment": {}}',       "has a format that this version does not read"),
])  # fmt: skip
def test_what_is_no_result_is_one_sentence(tmp_path, text, words):
    if text is not None:
        (tmp_path / "summary.json").write_text(text)
    with pytest.raises(NotAResult, match=words):
        read_result(tmp_path)
    done = CliRunner().invoke(report_command, [str(tmp_path)])
    assert done.exit_code == 1
    assert words in done.output
    assert "Traceback" not in done.output
