"""The Markdown files: their length, their sentences and words, and whether what they name exists."""

import ast
import pathlib
import re
import statistics

import pytest

from parity.layers import REGISTRY
from tests.test_symbols import exists

ROOT = pathlib.Path(__file__).resolve().parents[1]
OUTSIDE = {".venv", ".venv-newest", ".git", ".pytest_cache", "out", "runs", "node_modules"}
FILES = [path for path in sorted(ROOT.rglob("*.md")) if not OUTSIDE & set(path.relative_to(ROOT).parts)]
READMES = [path for path in FILES if path.name == "README.md"]
PROSE = [path for path in FILES if path.name != "CHANGELOG.md"]
ON_ONE_PAGE = 9 * 1024
MEDIAN, LONGEST, LONGEST_IN_FRONT = 20, 40, 30

# Words of this project alone where the field has others; `lifetime` is the paper's.
HOME_MADE = re.compile(
    r"\b(life|lives|lived|tapes?|in the box|parts? from|part(s|ed) (sooner|later|earlier|first)|renew\w*|told|tell"
    r"|hears?|who speaks|speaks?|so many|movements?|(hunt|plant)(s|ed|ing)?|embedded|side by side|jitter\w*)\b",
    re.IGNORECASE,
)
MADE_BY_COMMANDS = ("reports/out/", "runs/")


def name(path):
    return str(path.relative_to(ROOT))


def each(paths):
    return pytest.mark.parametrize("path", paths, ids=name)


def without_code(text):
    """The text without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def plain(text):
    """A paragraph in words: without links, emphasis and code."""
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]+`", "code", text)).replace("**", "")


def split(text):
    """All sentences of four words or more; what is shorter is a label."""
    return [part for part in re.split(r"(?<=[.!?])\s+(?=\S)", plain(text)) if len(part.split()) >= 4]


def sentences(text):
    """Those of paragraphs and lists."""
    found, block = [], []
    for line in [*without_code(text).splitlines(), ""]:
        starts = re.match(r"\s*([-*>]|\d+\.)\s+", line)
        is_apart = not line.strip() or line.startswith(("#", "|"))
        if is_apart or starts:
            found, block = [*found, *split(" ".join(block))], []
        if not is_apart:
            block.append(line[starts.end() :] if starts else line.strip())
    return found


def cells(text):
    """The sentences in tables."""
    rows = [line.strip("|") for line in without_code(text).splitlines() if line.startswith("|")]
    return [sentence for row in rows for cell in row.split("|") for sentence in split(cell.strip())]


def test_the_front_page_is_one_page():
    assert (ROOT / "README.md").stat().st_size <= ON_ONE_PAGE


@each(READMES)
def test_sentences_are_short(path):
    text, limit = path.read_text(encoding="utf-8"), LONGEST_IN_FRONT if path.parent == ROOT else LONGEST
    long = [s for s in [*sentences(text), *cells(text)] if len(s.split()) > limit]
    assert not long, f"over {limit} words: {long}"
    assert statistics.median(len(s.split()) for s in sentences(text)) <= MEDIAN


def home_made(text):
    """Words of this project alone, with the line they stand in."""
    return [line.strip() for line in text.splitlines() if HOME_MADE.search(line)]


@each(PROSE)
def test_words_are_those_of_the_field(path):
    assert home_made(path.read_text(encoding="utf-8")) == []


def introduces_the_stand_in(text):
    """Whether the first paragraph with `stand-in` explains it, if there is one."""
    paragraphs = [block for block in re.split(r"\n\s*\n", text) if not block.startswith("#")]
    first = next((block for block in paragraphs if re.search(r"\bstand-in\b", block, re.I)), None)
    return first is None or "reimplementation" in first


@each(READMES)
def test_the_stand_in_is_introduced_where_it_first_stands(path):
    assert introduces_the_stand_in(without_code(path.read_text(encoding="utf-8")))


def slug(heading):
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(path):
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {slug(heading) for heading in headings}


def broken_links(path, text):
    """Relative links to files that do not exist, or to headings that they do not have."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        file = (path.parent / target) if target else path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    return broken


@each(FILES)
def test_links_lead_somewhere(path):
    assert broken_links(path, path.read_text(encoding="utf-8")) == []


def missing_files(path, text):
    """What stands in backticks, looks like a path of this repository, and is none."""
    rooms = "|".join(sorted(p.name for p in ROOT.iterdir() if p.is_dir() and p.name not in OUTSIDE))
    named = re.findall(rf"`((?:{rooms})/[\w./*-]*|[\w./-]+\.(?:py|toml|json|md|cff|lock))`", without_code(text))
    kept = [one for one in named if not one.startswith(MADE_BY_COMMANDS) and "..." not in one]
    return [one for one in kept if not any([*ROOT.glob(one), *path.parent.glob(one)])]


@each([path for path in READMES if path.parent != ROOT] + [ROOT / "README.md"])
def test_files_that_are_named_exist(path):
    text = path.read_text(encoding="utf-8")
    examples = {"my_adapter.py", "mutant.py", "trace.svg"}
    assert [one for one in missing_files(path, text) if one not in examples] == []


def missing_modules(text):
    """Modules that are run with `python -m` and are not there; those of other projects are not ours to check."""
    run = set(re.findall(r"python (?:-\w )?-m ([\w.]+)", text)) | set(re.findall(r"torchrun .*? -m ([\w.]+)", text))
    ours = [module for module in run if (ROOT / module.split(".")[0]).is_dir()]
    places = {module: ROOT / module.replace(".", "/") for module in ours}
    return [m for m, at in places.items() if not at.with_suffix(".py").exists() and not (at / "__main__.py").exists()]


@each(FILES)
def test_commands_that_are_named_exist(path):
    assert missing_modules(path.read_text(encoding="utf-8")) == []


def index_of_layers():
    """The index in the harness's README: group -> modules of the port, and the cells of the other four columns."""
    text = (ROOT / "parity/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (`port/.*?`) \| (.*) \|$", text, re.MULTILINE)
    return {group: (re.findall(r"`(.*?)`", port), rest.split(" | ")) for group, port, rest in rows}


FOLDERS = ("port/adapter", "reference/standin", "reference/original", "parity/layers")
RENAMED = (ROOT / "reference/standin/layers.py").read_text(encoding="utf-8")  # its functions have names of their own


def files_of(folder, cell):
    """The files that a cell names: paths in backticks, or names without an ending."""
    return [ROOT / (name if "/" in name else f"{folder}/{name}.py") for name in re.findall(r"[\w./]+", cell)]


@pytest.mark.parametrize("layer", REGISTRY)
def test_the_index_says_where_a_layer_stands(layer):
    group = layer.partition("/")[0]
    modules, cells = index_of_layers()[group]
    assert all(list(ROOT.glob(path)) for path in modules)
    for folder, cell in zip(FOLDERS, cells, strict=True):
        text = "".join(path.read_text(encoding="utf-8") for path in files_of(folder, cell))
        text += RENAMED if folder == "reference/standin" else ""
        assert f'"{layer}"' in text or f'f"{group}/{{' in text, f"{layer} is not in {cell} of {folder}"


@each(READMES)
def test_names_of_the_port_exist(path):
    named = set(re.findall(r"`(port(?:\.\w+)+)`", path.read_text(encoding="utf-8")))
    assert [one for one in named if not exists(one)] == []


@each(READMES)
def test_programs_can_be_parsed(path):
    for program in re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        ast.parse(program)


def in_words(text):
    """Markdown or HTML as plain words, so that both can be compared."""
    text = text.replace("<sub>p</sub>", "ₚ").replace("<sup>−p</sup>", "⁻ᵖ")
    return " ".join(re.sub(r"</?\w+>|`", "", text).split())


def test_front_page_and_report_define_equality_in_the_same_words():
    front = in_words((ROOT / "README.md").read_text(encoding="utf-8"))
    report = (ROOT / "reports" / "page" / "templates" / "equal.html.j2").read_text(encoding="utf-8")
    rules = [in_words(rule) for rule in re.findall(r"<li>(.*?)</li>", report, re.DOTALL)]
    assert len(rules) == 5 and [rule for rule in rules if rule not in front] == []


def test_what_is_wrong_would_be_seen():
    page, table = ROOT / "README.md", "| one two three four | x |\n|---|---|\n"
    assert home_made("The port lives its life\nlifetime\nwho is told") == ["The port lives its life", "who is told"]
    listed = "# A b c d\n\n- One two three four.\n- Two `x y` three four five."
    assert sentences(listed) == ["One two three four.", "Two code three four five."]
    assert (sentences(table), cells(table)) == ([], ["one two three four"])
    assert not introduces_the_stand_in("The stand-in is old.\n\nA reimplementation.")
    assert broken_links(page, "[a](README.md) [b](no.md) [c](README.md#no)") == ["no.md", "README.md#no"]
    assert missing_files(page, "`port/agent.py` `port/absent.py` `tests/*.py`") == ["port/absent.py"]
    assert missing_modules("python -m parity list; python -m reports.absent; python -m pip") == ["reports.absent"]
