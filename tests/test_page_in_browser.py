"""The page as a reader sees it: in headless Chromium, on a desk and a phone, in light and dark, without JavaScript."""

import json
import re

import pytest

from parity.errors import CannotRun
from reports import browser, page, screenshot
from tests import small_page

PHONE = {"width": 390, "height": 844}
LEAST_CONTRAST = 4.5

# Every text that can be seen, with the contrast of its colour to what is painted behind it.
CONTRASTS = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(element).backgroundColor);
      if (a === 1) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = {};
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !element.getClientRects().length) continue;
    const [x, y] = [channels(getComputedStyle(element).color).slice(0, 3), behind(element)].map(luminance);
    const what = `${element.tagName.toLowerCase()}.${element.className}`;
    found[what] = Math.min(found[what] ?? 99, (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05));
  }
  return found;
}"""


@pytest.fixture(scope="module")
def chromium():
    try:
        browser.find_chromium()
    except CannotRun as reason:
        pytest.skip(str(reason))
    with browser.started() as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The page's path and its sections."""
    out = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch:
        sections = small_page.make(patch, out)
    return page.write(sections, out), sections


@pytest.fixture
def opened(chromium, made):
    with browser.visit(chromium, made[0]) as visit:
        yield visit


def open_everything(visit):
    visit.page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true; })")


def column(visit, place):
    cells = visit.page.locator(f"#numbers tbody td:nth-child({place})")
    return cells.all_inner_texts()


# What may not be broken


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390, 320])
def test_nothing_is_broken_asked_for_or_too_wide(chromium, made, width, scheme):
    with browser.visit(chromium, made[0], width, scheme=scheme) as visit:
        assert visit.page.locator("img").count() == 5
        assert visit.faults() == []
        open_everything(visit)
        assert visit.faults() == []


LONG_BADGE = '<b class="badge" style="white-space: nowrap">two words</b>'
BROKEN = {
    "image": ('<img alt="gone" src="data:image/png;base64,AAAA">', 'the image "gone" is broken'),
    "file": ('<a href="gone.csv">data</a>', "missing file: gone.csv"),
    "anchor": ('<a href="#gone">there</a>', "nothing is at #gone"),
    "width": ('<p style="width: 700px">x</p>', "the page is 708 wide where 390 fit, at <p>"),
    "badge": (
        f'<nav class="contents"><p style="width: 9px">{LONG_BADGE}</p></nav>',
        '"two words" is wider than its place',
    ),
    "request": ('<script src="https://example.org/x.js"></script>', "the page asks for https://example.org/x.js"),
    "beside": ('<img alt="x" src="beside.png">', "beside.png"),
    "console": ("<script>console.error('oh')</script>", "console error: oh"),
    "script": ("<script>nothing.here()</script>", "nothing is not defined"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_told(chromium, tmp_path, name):
    html, said = BROKEN[name]
    (tmp_path / "beside.png").write_bytes(b"")
    (tmp_path / "index.html").write_text(f'<meta name="viewport" content="width=device-width"><body>{html}')
    with browser.visit(chromium, tmp_path / "index.html", **PHONE) as visit:
        visit.page.wait_for_load_state()
        assert any(said in fault for fault in visit.faults()), visit.faults()


def test_links_that_hold_are_no_faults(chromium, tmp_path):
    (tmp_path / "a b.csv").write_text("x")
    links = '<a href="a%20b.csv">1</a><a href="#here" id="here">2</a><a href="https://example.org/">3</a>'
    (tmp_path / "index.html").write_text(links)
    with browser.visit(chromium, tmp_path / "index.html") as visit:
        assert visit.faults() == []


def test_wide_tables_and_pictures_scroll_in_their_own_frame(chromium, made):
    with browser.visit(chromium, made[0], **PHONE) as visit:
        open_everything(visit)
        frames = visit.page.eval_on_selector_all(
            ".wide", "all => all.map(e => [e.scrollWidth > e.clientWidth, getComputedStyle(e).overflowX])"
        )
        assert all(overflow == "auto" for _, overflow in frames)
        assert sum(is_wider for is_wider, _ in frames) >= 5
        assert visit.page.locator("table").count() == visit.page.locator(".wide > table").count()


# What it says


def test_the_top_gives_the_verdict_the_state_of_each_section_and_what_was_compared(opened, made):
    _, sections = made
    verdict = opened.page.locator(".verdict")
    assert verdict.inner_text() == page.in_one_line(sections)[1]
    assert "bad" in verdict.get_attribute("class").split()
    contents = opened.page.locator("nav li").all_inner_texts()
    assert len(contents) == len(sections)
    for text, section in zip(contents, sections, strict=True):
        assert section.title in text and section.verdict.split("`")[0].strip() in text
    badges = opened.page.locator("nav .badge")
    assert badges.all_inner_texts() == [section.label for section in sections]
    shown = badges.evaluate_all("all => all.map(one => one.className)")
    assert shown == [f"badge {section.state}" for section in sections]
    top = opened.page.locator("h2 + dl").first.inner_text()
    for label in (*page.COMPARED, "versions here", "installed", "this project", "made"):
        assert label in top
    assert opened.page.locator("main dt", has_text="versions here").count() == 0


def test_every_section_has_its_command_and_its_files(opened, made):
    for section in made[1]:
        part = opened.page.locator(f"section#{section.name}")
        assert part.locator("dt:text-is('made by') + dd code").inner_text() == section.command
        links = part.locator("dl a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
        assert links == section.files
        assert section.files or section.state == "absent"


def test_every_picture_has_its_numbers_beside_it(opened):
    figures = opened.page.locator("figure")
    for figure in figures.all():
        assert figure.locator("img").count() == 1
        assert re.search(r"\.csv$", figure.locator("figcaption a").get_attribute("href"))
    assert figures.count() == opened.page.locator("img").count()


def test_a_section_that_could_not_run_says_why(opened):
    assert "There is no original; make original brings it." in opened.page.locator("section#speed").inner_text()


# Tables


ASCENDING = ["-5", "0", "1.5e-3 0.9", "7", "12", "1,200", "inf", "–"]


def test_numbers_sort_as_numbers_up_down_and_back(opened):
    heading = opened.page.locator("#numbers th", has_text="size")
    orders = {
        "ascending": ASCENDING,
        "descending": [*ASCENDING[-2::-1], "–"],
        "none": list(small_page.CELLS),
    }
    assert heading.get_attribute("aria-sort") == "none"
    for state, cells in orders.items():
        heading.locator("button").click()
        assert heading.get_attribute("aria-sort") == state
        assert column(opened, 2) == cells


def test_names_sort_as_names_and_rows_stay_whole(opened):
    pairs = dict(zip(small_page.NAMES, small_page.CELLS, strict=True))
    opened.page.locator("#numbers th button", has_text="size").click()
    opened.page.locator("#numbers th button", has_text="name").click()
    assert column(opened, 1) == ["a", "b9", "b10", "c", "d", "e", "f", "g"]
    assert dict(zip(column(opened, 1), column(opened, 2), strict=True)) == pairs
    states = opened.page.locator("#numbers th").evaluate_all("all => all.map(th => th.ariaSort)")
    assert states == ["ascending", "none"]


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_tables_sort_by_the_keyboard(opened, key):
    opened.page.locator("#numbers th button", has_text="name").focus()
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press(key)
    assert column(opened, 2) == ASCENDING
    opened.page.keyboard.press(key)
    assert column(opened, 2)[-2:] == ["-5", "–"]


def test_every_table_of_the_page_sorts_by_every_column(opened):
    open_everything(opened)
    for table in opened.page.locator("table").all():
        rows = table.locator("tbody tr")
        before = rows.all_inner_texts()
        for button in table.locator("th button").all():
            button.click()
            assert sorted(rows.all_inner_texts()) == sorted(before)
        assert table.locator("th").count() == table.locator("th button").count() > 1
    assert opened.errors == []


def test_the_parity_table_sorts_by_its_share_of_the_tolerance(opened):
    table = opened.page.locator("section#parity table").first
    names = table.locator("th").all_inner_texts()
    place = names.index("share of tolerance") + 1
    table.locator("th button", has_text="share of tolerance").click()
    shares = [float(text) for text in table.locator(f"td:nth-child({place})").all_inner_texts()]
    assert shares == sorted(shares) and len(set(shares)) > 1


# For every reader


def test_all_can_be_read_without_javascript(chromium, made):
    texts = []
    for with_javascript in (True, False):
        with browser.visit(chromium, made[0], with_javascript=with_javascript) as visit:
            assert visit.page.locator("th button").count() == (
                0 if not with_javascript else visit.page.locator("th").count()
            )
            for summary in visit.page.locator("summary").all():
                if summary.evaluate("one => !one.parentElement.open"):
                    summary.click()
            texts.append(visit.page.locator("body").inner_text())
            assert visit.faults() == []
    assert texts[0] == texts[1]
    for section in made[1]:
        assert section.verdict.replace("`", "") in texts[1]
    assert all(f"{name}\t{cell}" in texts[1] for name, cell in zip(small_page.NAMES, small_page.CELLS, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(chromium, made, scheme):
    with browser.visit(chromium, made[0], scheme=scheme) as visit:
        open_everything(visit)
        found = visit.page.evaluate(CONTRASTS)
        wanted = {"p.", "a.", "td.", "code.", "p.verdict bad", *(f"span.badge {state}" for state in page.LABELS)}
        assert wanted <= set(found), wanted - set(found)
        assert {what: ratio for what, ratio in found.items() if ratio < LEAST_CONTRAST} == {}
        visit.page.emulate_media(color_scheme="light" if scheme == "dark" else "dark")
        assert visit.page.evaluate(CONTRASTS) != found  # there are two schemes


def test_pictures_are_turned_over_in_the_dark_and_have_no_ground_of_their_own(chromium, made):
    for scheme, is_turned in (("light", False), ("dark", True)):
        with browser.visit(chromium, made[0], scheme=scheme) as visit:
            filters = visit.page.eval_on_selector_all("figure img", "all => all.map(e => getComputedStyle(e).filter)")
            assert all(("invert" in one) == is_turned for one in filters)
            corner = visit.page.locator("figure img").first.evaluate(
                """image => {
                  const canvas = Object.assign(document.createElement("canvas"), { width: 9, height: 9 });
                  canvas.getContext("2d").drawImage(image, 0, 0);
                  return canvas.getContext("2d").getImageData(1, 1, 1, 1).data[3];
                }"""
            )
            assert corner == 0


def test_the_command_takes_a_small_picture_and_tells_what_is_broken(made, chromium, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(browser, "started", lambda: _already(chromium))
    png = tmp_path / "page.png"
    assert screenshot.main(["--page", str(made[0]), "--png", str(png)]) == 0
    head = png.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) == (1200, 900)
    assert png.stat().st_size < 300_000
    (tmp_path / "index.html").write_text('<a href="gone.csv">data</a>')
    given = ["--page", str(tmp_path / "index.html"), "--png", str(png), "--json", str(tmp_path / "faults.json")]
    assert screenshot.main(given) == 1
    assert "Broken, phone: missing file: gone.csv." in capsys.readouterr().out
    assert len(json.loads((tmp_path / "faults.json").read_text())) == 2


class _already:
    """A browser that goes on."""

    def __init__(self, chromium):
        self.chromium = chromium

    def __enter__(self):
        return self.chromium

    def __exit__(self, *_):
        pass
