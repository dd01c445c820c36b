"""`python -m reports.audit disco_torch`: a port that others use, on the bench.

Which of its layers are equal to the original, which differ and by how much, which line of it makes the difference, and
what that means for its users; for several releases, how the differences moved.

The package is never installed here by this command. Either it is (`pip install 'disco-parity[audit]'`), or its
releases lie in folders of their own:

    for v in 0.1.0 0.2.0 0.4.0; do pip install --no-deps --target DIR/$v disco-torch==$v; done
    python -m reports.audit disco_torch --versions 0.1.0,0.2.0,0.4.0 --from DIR

Each release is judged in a process of its own. A line is named as the cause of a difference only if a copy of the
package in which it, and it alone, is left as it is (all other known causes being corrected) still differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from parity.implementation import CannotRun
from parity.layers import REGISTRY
from parity.store import FixtureError, Store, write_atomically
from reports import page
from reports.adapters.release import Release, examine, find_packages

AUDITED = ("disco_torch",)
COLOURS = ("#9aa5b1", "#d97a1f", "#2a78d6", "#7a4fc4")
FLOOR = 1e-17


def feeds(layer: str) -> list[str]:
    """All layers whose outputs reach this one, in data-flow order."""
    found: set[str] = set()
    waiting = list(REGISTRY[layer].upstream) if layer in REGISTRY else []
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += REGISTRY[name].upstream
    return [name for name in REGISTRY if name in found]


def origins(release: Release) -> list[str]:
    """Layers that differ although everything that feeds them, as far as it is provided, is equal."""
    different = release.different_layers()
    return [name for name in different if name in REGISTRY and not set(feeds(name)) & set(different)]


def first_divergence(release: Release) -> str:
    """In words: the first layer whose values differ in float64, what feeds it, and what differs in another way."""
    found = origins(release)
    first = [name for name in found if release.state(name).startswith("values")]
    rest = [f"{name} ({release.state(name)})" for name in found if name not in first]
    other = (
        f"Of the layers that nothing different feeds, these differ in another way: {', '.join(rest)}." if rest else ""
    )
    if not first:
        return other or "No layer differs."
    upstream = [name for name in feeds(first[0]) if name in release.provided]
    fed = f"all that feeds it is equal ({', '.join(upstream)})" if upstream else "no other layer feeds it"
    others = f" All that feeds {', '.join(first[1:])}, further on, is equal too." if first[1:] else ""
    return f"In data-flow order the first layer that differs is {first[0]}; {fed}.{others} {other}".strip()


def verdict(release: Release) -> str:
    """One sentence for the head of the page."""
    different = [name for name in release.different_layers() if name in REGISTRY]
    equal = len(release.provided) - len(different)
    values = sum(release.state(name).startswith("values") for name in different)
    lesser = len(different) - values
    how = f" ({values} in their values, {lesser} only in gradients or in float32 accuracy)" if lesser else ""
    return (
        f"disco-torch {release.version} provides {len(release.provided)} of {len(REGISTRY)} layers: {equal} equal to "
        f"the original, {len(different)} different{how}."
    )


def movement(older: Release, newer: Release) -> list[str]:
    """What changed from one release to the next, in sentences."""
    before, after = (set(r.different_layers()) & set(REGISTRY) for r in (older, newer))
    both = set(older.provided) & set(newer.provided)
    lists = {
        "Equal now": (before - after) & both,
        "Different now": (after - before) & both,
        "Different as before": before & after,
        "New, and equal": set(newer.provided) - set(older.provided) - after,
        "New, and different": (set(newer.provided) - set(older.provided)) & after,
    }
    return [f"{title}: {', '.join(n for n in REGISTRY if n in names)}." for title, names in lists.items() if names]


def figure(releases: list[Release]) -> Figure:
    """Each layer's worst error in float64, relative to the output's scale, in each release."""
    layers = [name for name in REGISTRY if any(name in r.different_layers() for r in releases)]
    drawing = Figure(figsize=(8.5, 0.26 * max(len(layers), 3) + 1.2), layout="constrained")
    axes = drawing.subplots()
    for place, release in enumerate(releases):
        points = [(i, row) for i, name in enumerate(layers) if (row := release.worst(name, "value", "float64"))]
        heights = [i + 0.22 * (place - (len(releases) - 1) / 2) for i, _ in points]
        errors = [min(max(row.max_rel, FLOOR), 1e3) for _, row in points]
        colour = COLOURS[(place - len(releases)) % len(COLOURS)]
        axes.plot(errors, heights, "o", ms=5, color=colour, label=release.version)
    axes.axvline(1e-12, color="#c0392b", lw=1)
    axes.set(xscale="log", xlim=(FLOOR / 2, 2e3), ylim=(len(layers) - 0.5, -0.5))
    axes.set_xlabel("worst error of the values in float64, of the output's scale (1e-17: exact; 1e3: not comparable)")
    axes.set_yticks(range(len(layers)), layers, fontsize=8)
    axes.grid(axis="x", color="#999999", alpha=0.3, lw=0.6)
    if layers:
        axes.legend(loc="upper left", bbox_to_anchor=(0.0, 1.0), frameon=False, fontsize=8)
    return drawing


def as_json(releases: list[Release]) -> list[dict[str, Any]]:
    """What the page says, for machines."""
    return [
        {
            "version": release.version,
            "provided": release.provided,
            "not_provided": release.not_provided,
            "different": release.different_layers(),
            "outputs_not_provided": release.missing_outputs(),
            "first_divergence": first_divergence(release),
            "causes": [finding.as_json() for finding in release.findings],
            "left_over": [row.as_json() for row in release.left_over],
            "layers": [
                {"layer": name, **(release.smallest(name).as_json() | {"layer": name})}
                for name in release.different_layers()
            ],
            "repros": release.repros,
            "diagnoses": release.diagnoses,
        }
        for release in releases
    ]


def write_data(releases: list[Release], out: Path) -> tuple[str, list[str]]:
    """Writes rows, findings and picture; returns the picture for the page, and the names of the files."""
    rows = [{"version": r.version, **row.as_json()} for r in releases for row in r.rows]
    write_atomically(out / "audit.csv", pd.DataFrame(rows).to_csv(index=False).encode())
    write_atomically(out / "audit.json", (json.dumps(as_json(releases), indent=1) + "\n").encode())
    drawing = figure(releases)
    image = page.picture(drawing)
    drawing.savefig(out / "audit.png", dpi=130)
    return image, ["audit.csv", "audit.json", "audit.png"]


def section(name: str, packages: dict[str, Path], out: Path, command: str) -> page.Section:
    """The section of the page: the newest release in full, the others beside it."""
    causes = importlib.import_module(f"reports.adapters.known_{name}").CAUSES
    releases = [examine(name, version, folder, causes, out) for version, folder in packages.items()]
    newest = releases[-1]
    image, files = write_data(releases, out)
    store = Store()
    body = page.render(
        "audit.html.j2",
        newest=newest,
        releases=releases,
        registry=[n for n in REGISTRY if any(n in r.provided for r in releases)],
        probed=[n for n in newest.different_layers() if n not in REGISTRY],
        first=first_divergence(newest),
        movements=[
            (f"{a.version} to {b.version}", movement(a, b)) for a, b in zip(releases, releases[1:], strict=False)
        ],
        image=image,
    )
    original = store.manifest["original"]
    return page.Section(
        name="audit",
        title="A port on the bench: disco-torch",
        verdict=verdict(newest),
        is_equal=not newest.different_layers(),
        command=command,
        body=body,
        provenance=[
            ("candidate", ", ".join(release.description for release in releases)),
            ("reference", f"the original, recorded: {original['repository']} at {original['commit']}"),
        ],
        files=[
            *files,
            *(f"repro/{release.version}/{file}" for release in releases for file in release.repros.values()),
        ],
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m reports.audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("package", choices=AUDITED, help="the port to judge")
    made.add_argument("--versions", metavar="V,V", help="releases, oldest first; folders of these names under --from")
    made.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="holds one folder for each release")
    made.add_argument("--out", type=Path, default=page.OUT, metavar="DIR", help="where to write (reports/out)")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the verdict for machines")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """0 equal, 1 different, 2 could not run."""
    args = parser().parse_args(arguments)
    given = [f"--versions {args.versions}" if args.versions else "", f"--from {args.folder}" if args.folder else ""]
    command = " ".join(["python -m reports.audit", args.package, *filter(None, given)])
    try:
        packages = find_packages(args.package, args.folder, args.versions.split(",") if args.versions else [])
        args.out.mkdir(parents=True, exist_ok=True)
        made = section(args.package, packages, args.out, command)
    except (CannotRun, FixtureError) as error:
        print(f"reports.audit: {error}", file=sys.stderr)
        return 2
    path = page.write([made], args.out)
    if args.json:
        write_atomically(args.json, page.as_json([made]))
    print(f"{made.verdict}\nThe page is {path}")
    return 0 if made.is_equal else 1


if __name__ == "__main__":
    raise SystemExit(main())
