"""`python -m reports.audit PORT`: checks somebody's port, layer by layer: disco_torch, or one with an adapter.

The report names the layers that differ, by how much, and the first that does. It names the known porting mistakes that
reproduce the differences. Of disco_torch, whose causes of differences are known, it names the line behind each, and
what it means for users. Given several releases, it lists what changed between them. For each difference of the newest
release it writes a file that reproduces it, for the port's authors.

    python -m reports.audit my_adapter:implementation --curves

The command does not install disco-torch. Install it with `pip install --no-deps disco-torch==0.4.0` (the extra
`audit`), or put each release into a folder of its own:

    for v in 0.1.0 0.2.0 0.4.0; do pip install --no-deps --target DIR/$v disco-torch==$v; done
    python -m reports.audit disco_torch --versions 0.1.0,0.2.0,0.4.0 --from DIR --json verdict.json

Each release is checked in its own process. A line counts as the cause of a difference only after an experiment with two
copies of the package. The copy with all other known causes corrected must differ, and the copy with all known causes
corrected must not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from parity.command_line import exit_code, write_result
from parity.errors import CannotRun
from parity.files import write_atomically
from parity.layers import REGISTRY
from parity.layers.spec import upstream
from reports import page
from reports.audit import repro
from reports.audit.causes import REACHES, Port, load_port
from reports.audit.release import Finding, Release, examine, find_packages, fixtures, in_parallel, is_folded
from reports.catch_curves import command as catch_curves

AUDITED = "disco_torch"
TITLE = "Another port"
COLOURS = ("#9aa5b1", "#d97a1f", "#2a78d6", "#7a4fc4")
EXACT, LARGEST = 1e-17, 1e3  # where the picture shows no error at all, and all that is larger


def first_divergence(release: Release) -> str:
    """A sentence: the first layer whose values differ in float64, its inputs, and other kinds of difference."""
    different = [name for name in release.different_layers() if name in REGISTRY]
    layers = [name for name in different if not upstream(name) & set(different)]
    first = [name for name in layers if release.state(name).startswith("values")]
    rest = [f"{name} ({release.state(name)})" for name in layers if name not in first]
    other = f"These layers have equal inputs and differ in another way: {', '.join(rest)}." if rest else ""
    if not first:
        return other or "No layer differs."
    feeding = [name for name in release.provided if name in upstream(first[0])]
    fed = f"all its inputs are equal ({', '.join(feeding)})" if feeding else "no other layer precedes it"
    others = f" The inputs of {' and '.join(first[1:])}, later on, are equal too." if first[1:] else ""
    return f"In data-flow order the first layer whose values differ is {first[0]}; {fed}.{others} {other}".strip()


def verdict(release: Release) -> str:
    """One sentence for the head of the page."""
    different = [name for name in release.different_layers() if name in REGISTRY]
    equal = len(release.provided) - len(different)
    values = sum(release.state(name).startswith("values") for name in different)
    lesser = len(different) - values
    how = f" ({values} in their values, {lesser} only in gradients or in float32 accuracy)" if lesser else ""
    return (
        f"{release.title} provides {len(release.provided)} of {len(REGISTRY)} layers: {equal} equal to "
        f"the original, {len(different)} different{how}."
    )


def changes(older: Release, newer: Release) -> list[str]:
    """What changed from one release to the next, in sentences: causes first, then layers."""
    before, after = ({finding.cause.name: finding.cause.title for finding in r.findings} for r in (older, newer))
    wrong, still = (set(r.different_layers()) & set(REGISTRY) for r in (older, newer))
    had, has = set(older.provided), set(newer.provided)
    causes = {
        "No longer present": [title for name, title in before.items() if name not in after],
        "New": [title for name, title in after.items() if name not in before],
        "Unchanged": [title for name, title in after.items() if name in before],
    }
    layers = {
        "Layers that have become equal": (wrong - still) & had & has,
        "Layers that have become different": (still - wrong) & had & has,
        "New layers, equal": has - had - still,
        "New layers, different": (has - had) & still,
    }
    return [
        *(f"{title}: {'; '.join(titles)}." for title, titles in causes.items() if titles),
        *(f"{title}: {', '.join(n for n in REGISTRY if n in names)}." for title, names in layers.items() if names),
    ]


def figure(releases: list[Release]) -> Figure:
    """Each layer's worst error in float64, relative to the output's scale, in each release; hollow where equal."""
    layers = [name for name in REGISTRY if any(name in r.different_layers() for r in releases)]
    drawing = Figure(figsize=(8.5, 0.26 * max(len(layers), 3) + 1.2), layout="constrained")
    axes = drawing.subplots()
    for place, release in enumerate(releases):
        points = [(i, row) for i, name in enumerate(layers) if (row := release.worst(name))]
        heights = [i + 0.22 * (place - (len(releases) - 1) / 2) for i, _ in points]
        errors = [min(max(row.max_rel, EXACT), LARGEST) for _, row in points]
        colour = COLOURS[(place - len(releases)) % len(COLOURS)]
        faces = [colour if not row.equal else "none" for _, row in points]
        axes.scatter(errors, heights, s=25, edgecolors=colour, facecolors=faces, label=release.version)
    axes.set(xscale="log", xlim=(EXACT / 2, 2 * LARGEST), ylim=(max(len(layers), 1) - 0.5, -0.5))
    axes.set_xlabel(f"worst error of the values in float64 / scale ({EXACT:g}: exact; hollow: within its tolerance)")
    axes.set_yticks(range(len(layers)), layers, fontsize=8)
    axes.grid(axis="x", color="#999999", alpha=0.3, lw=0.6)
    if layers:
        axes.legend(loc="upper left", bbox_to_anchor=(0.3, 1.0), frameon=False, fontsize=8)
    return drawing


def as_json(releases: list[Release], reasons: dict[str, str]) -> list[dict[str, Any]]:
    """What the page says, for machines."""
    return [
        {
            "version": release.version,
            "verdict": verdict(release),
            "files_changed_since_release": release.changed,
            "provided": release.provided,
            "not_provided": {name: reasons[name] for name in release.judgement.outcome.not_provided},
            "different": {name: release.state(name) for name in release.different_layers()},
            "outputs_not_provided": release.missing_outputs(),
            "first_divergence": first_divergence(release),
            "diagnoses": [diagnosis.as_json() for diagnosis in release.judgement.diagnoses],
            "causes": [finding.as_json() for finding in release.findings],
            "left_over": [row.as_json() for row in release.left_over],
            "layers": {name: release.example(name).as_json() for name in release.different_layers()},
        }
        for release in releases
    ]


def write_data(releases: list[Release], reasons: dict[str, str], out: Path) -> tuple[str, list[str]]:
    """Writes rows, findings and picture; returns the picture for the page, and the names of the files."""
    rows = [{"version": r.version, **row.as_json()} for r in releases for row in r.rows]
    write_atomically(out / "audit.csv", pd.DataFrame(rows).to_csv(index=False).encode())
    write_atomically(out / "audit.json", (json.dumps(as_json(releases, reasons), indent=1) + "\n").encode())
    drawing = figure(releases)
    image = page.picture(drawing)
    drawing.savefig(out / "audit.png", dpi=130)
    return image, ["audit.csv", "audit.json", "audit.png"]


def with_repros(release: Release, port: Port, package_folder: Path, out: Path, jobs: int) -> Release:
    """Writes a file for each finding and runs it with the port alone; one that does not prove it is not kept."""
    folder = out / "repro" / release.version
    for old in folder.glob("repro_*.py"):
        old.unlink()

    def shown(finding: Finding) -> Finding:
        if finding.cause.shown is None:
            return finding
        path = folder / f"repro_{finding.cause.name}.py"
        text = repro.source(finding.cause, finding.place, release.version, port.distribution, path.name)
        write_atomically(path, text.encode())
        is_proof, printed = repro.proves(path, finding.cause, package_folder / port.name)
        if not is_proof:
            path.unlink()
        return replace(finding, repro=f"repro/{release.version}/{path.name}" if is_proof else "", printed=printed)

    return replace(release, findings=in_parallel(shown, release.findings, jobs))


def audited(port: Port, packages: dict[str, Path], out: Path, command: str, jobs: int = 2) -> page.Section:
    """The section of the page: the newest release in full, the others beside it."""
    releases = []
    for version, folder in packages.items():
        print(f"checking {port.title} ({version}) and tracing its differences", file=sys.stderr, flush=True)
        releases.append(examine(port, version, folder, jobs))
    out.mkdir(parents=True, exist_ok=True)
    releases[-1] = newest = with_repros(releases[-1], port, list(packages.values())[-1], out, jobs)
    reasons = port.reason_by_layer()
    image, files = write_data(releases, reasons, out)
    body = page.render(
        "audit.html.j2",
        port=port,
        newest=newest,
        releases=releases,
        registry=[n for n in REGISTRY if any(n in r.provided for r in releases)],
        beside=list(dict.fromkeys(row.layer for r in releases for row in r.rows if row.layer not in REGISTRY)),
        first=first_divergence(newest),
        changes=[(f"{a.version} to {b.version}", changes(a, b)) for a, b in itertools.pairwise(releases)],
        image=image,
        reaches=REACHES,
        reasons=reasons,
        is_folded=is_folded,
    )
    original = fixtures().manifest["original"]
    changed = [f"{r.version}: {', '.join(r.changed)}" for r in releases if r.changed]
    state = f"changed since release: {'; '.join(changed)}" if changed else "unchanged, by the digests in the wheel"
    return page.Section(
        name="audit",
        title=f"{TITLE}: {port.title}",
        verdict=verdict(newest),
        is_equal=not newest.different_layers(),
        command=command,
        body=body,
        provenance=[
            ("candidate", ", ".join(release.judgement.description for release in releases)),
            *([("its files", state)] if port.distribution else []),
            ("reference", f"the original, recorded: {original['repository']} at {original['commit']}"),
        ],
        files=[*files, *(finding.repro for finding in newest.findings if finding.repro)],
    )


def section(implementation_name: str, out: Path) -> page.Section:
    """The section for the whole page: of the release of disco-torch that is installed, or a sentence where none is.

    A published port is no verdict on `implementation_name`, so this section never turns the page red.
    """
    port, command = load_port(AUDITED), f"python -m reports.audit {AUDITED}"
    try:
        made = audited(port, find_packages(port, None, []), out, command)
    except CannotRun as reason:
        body = Markup("<p>{}</p><p>This command makes the section: <code>{}</code></p>").format(reason, command)
        words = f"{port.title} was not checked here."
        return page.Section("audit", f"{TITLE}: {port.title}", words, True, command, body, kind="not run")
    return replace(made, is_equal=True, kind="beside")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m reports.audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("port", metavar="PORT", help=f"{AUDITED}, or the adapter of a port as package.module:attribute")
    made.add_argument("--versions", metavar="V,V", help="releases, oldest first; folders of these names under --from")
    made.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="contains one folder per release")
    made.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the verdict for machines")
    made.add_argument(
        "--curves", action="store_true", help="also train it, if its adapter can; see reports.catch_curves"
    )
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="parallel processes (default: 2)")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    return exit_code(parser(), arguments, report)


def report(args: argparse.Namespace) -> int:
    """Audits what the options name, and writes the page; 0 equal, 1 different."""
    named = [f"--versions {args.versions}" if args.versions else "", f"--from {args.folder}" if args.folder else ""]
    command = " ".join(["python -m reports.audit", args.port, *filter(None, named)])
    port = load_port(args.port)
    packages = find_packages(port, args.folder, args.versions.split(",") if args.versions else [])
    made = audited(port, packages, args.out, command, max(args.jobs, 1))
    curves = [catch_curves.section(args.port, args.out)] if args.curves else []
    path = page.write([made, *curves], args.out)
    write_result(args.json, page.as_json([made, *curves]))
    print("\n".join(section.verdict for section in (made, *curves)))
    print(f"The page is {path}")
    return 0 if made.is_equal else 1
