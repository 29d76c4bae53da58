"""Puts the latest results (bench/results/*.json, docs/benchmarks/*.json) into README.md, between markers; a test holds both equal.

python -m ottla.bench.readme
"""

import re
import sys
from pathlib import Path
from typing import Final

from ottla.bench.environment import REPOSITORY
from ottla.bench.page.documents import FOLDER, committed, readme_lines
from ottla.bench.report import RESULTS, Report, all_rows, latest, overview, preface

README: Final = REPOSITORY / "README.md"
_BLOCK: Final = re.compile(r"(<!-- figures of bench\.(\w+) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)
_WORKLOADS: Final = re.compile(r"(<!-- benchmarks -->\n).*?(<!-- end of benchmarks -->\n)", re.DOTALL)


def block(program: str, report: Report | None) -> str:
    """What stands between the markers of one program."""
    if report is None:
        return f"\nThere is no result yet: `python -m ottla.bench.{program}` measures it.\n\n"
    return "\n".join(
        [
            "",
            f"`bench/results/{report.stem}.json`: {preface(report)}",
            "",
            *overview(report),
            "",
            f"<details><summary>All rows of bench.{program}</summary>",
            "",
            *all_rows(report),
            "",
            "</details>",
            "",
            "",
        ]
    )


def with_figures(text: str, folder: Path = RESULTS, documents: Path = FOLDER) -> str:
    """The text with the figures of the latest results in `folder`, and of workloads in `documents`, between its markers."""
    text = _BLOCK.sub(lambda found: found[1] + block(found[2], latest(found[2], folder)) + found[3], text)
    lines = "\n".join(["", *readme_lines(committed(documents)), ""])
    return _WORKLOADS.sub(lambda found: found[1] + lines + found[2], text)


def main() -> None:
    """The command line."""
    text = README.read_text()
    if not _BLOCK.search(text):
        sys.exit(f"{README} has no markers: <!-- figures of ottla.bench.compare --> ... <!-- end of figures -->")
    README.write_text(with_figures(text))


if __name__ == "__main__":
    main()
