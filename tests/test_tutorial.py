"""The tutorial in parity/README.md: its commands are run in order, and print what it quotes.

`UPDATE_TUTORIAL=1 python -m pytest -n 0 tests/test_tutorial.py` writes the quoted output again.
"""

import os
import pty
import re
import shlex
import subprocess
import sys
import textwrap

from tests.helpers import ROOT

README = ROOT / "parity" / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDEST, FIRST, LAST = 118, 14, 6  # columns, and lines of an output that is too long to be quoted whole
CODES = [0, 1, 1, 1, 0, 0]  # of the commands, in order


def section(text):
    """The tutorial, and where it begins."""
    start = text.index("## Tutorial\n")
    return text[start : text.index("\n## ", start)], start


def run(command, folder):
    """Exit code and output of a command, as in a terminal of 80 columns."""
    master, slave = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb", "NO_COLOR": "1"}
    arguments = [sys.executable, *shlex.split(command)[1:]]
    with subprocess.Popen(arguments, cwd=folder, env=environment, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        parts = []
        try:
            while part := os.read(master, 4096):
                parts.append(part)
        except OSError:  # how a terminal ends
            pass
    os.close(master)
    return process.returncode, b"".join(parts).decode().replace("\r\n", "\n")


def quoted(output):
    """What the tutorial shows of an output: without layers that are not there; long lines are wrapped or cut."""
    lines = [line.rstrip() for line in output.splitlines() if not line.rstrip().endswith(" not provided")]
    lines = lines if len(lines) <= FIRST + LAST else [*lines[:FIRST], "...", *lines[-LAST:]]
    return "".join(f"{part}\n" for line in lines for part in fitting(line))


def fitting(line):
    """A line in the width of the tutorial."""
    if len(line) <= WIDEST or "DIFFERENT" in line or len(line) > 2 * WIDEST:
        return [line if len(line) <= WIDEST else line[: WIDEST - 1] + "…"]
    return textwrap.wrap(line, WIDEST, subsequent_indent="    ")


def comparable(text):
    """Lines without what differs from machine to machine: measured errors, and where a line is cut after them."""
    text = re.sub(r"-?\d+\.\d+(e[+-]\d+)?|\d+e[+-]\d+|\d{9,}|\d+(?= sigma)", "#", text)
    lines = [re.sub(r"\s+", " ", line) for line in re.sub(r"[\u2580-\u259f]", "", text).splitlines()]
    return [line[:60] if line.endswith("…") else line for line in lines]


def fill_in(path, program):
    """Puts the functions of a program in the place of the stubs of the same names."""
    for function in program.strip().split("\n\n\n"):
        name = re.search(r"def (\w+)", function)[1]
        stub = re.search(rf"# @[^\n]*\ndef {name}\(.*?raise NotImplementedError", path.read_text(), re.DOTALL)
        path.write_text(path.read_text().replace(stub[0], function))


def change(path, diff):
    """Applies lines with - and + before them."""
    before, after = (re.search(rf"^\{sign} (.*)$", diff, re.MULTILINE)[1] for sign in "-+")
    assert path.read_text().count(before) == 1
    path.write_text(path.read_text().replace(before, after))


def follow(tutorial, folder):
    """The exit codes of the tutorial's commands, and the tutorial with their output."""
    codes, port = [], folder / "my_port.py"

    def done(block):
        kind, content = block.groups()
        if kind == "python":
            fill_in(port, content)
        elif kind == "diff":
            change(port, content)
        elif kind == "toml":
            (folder / "known.toml").write_text(content)
        elif kind == "console":
            command = content.removeprefix("$ ").partition("\n")[0]
            code, output = run(command, folder)
            codes.append(code)
            return f"```console\n$ {command}\n{quoted(output)}```"
        return block[0]

    return BLOCK.sub(done, tutorial), codes


def test_the_tutorial_shows_what_its_commands_print(tmp_path):
    text = README.read_text(encoding="utf-8")
    tutorial, start = section(text)
    again, codes = follow(tutorial, tmp_path)
    assert codes == CODES
    if "UPDATE_TUTORIAL" in os.environ:
        README.write_text(text[:start] + again + text[start + len(tutorial) :], encoding="utf-8")
    else:
        shown, printed = (BLOCK.findall(version) for version in (tutorial, again))
        assert [comparable(content) for _, content in shown] == [comparable(content) for _, content in printed]


def test_another_output_would_be_seen():
    line = "values/retrace   16 cases  3.59e+15σ  2 DIFFER"
    assert comparable(line) == comparable("values/retrace 16 cases 1.2e+03σ 2 DIFFER")
    assert comparable(line) != comparable(line.replace("2 D", "3 D"))
    long = "\n".join(f"line {i}" for i in range(99))
    assert quoted(long).splitlines()[FIRST - 1 : FIRST + 2] == [f"line {FIRST - 1}", "...", f"line {99 - LAST}"]
    assert quoted("a not provided\n" + "x" * 300) == "x" * (WIDEST - 1) + "…\n"
    assert quoted("word " * 30).splitlines()[1].startswith("    word")
