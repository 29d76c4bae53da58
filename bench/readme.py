"""Puts the latest results (bench/results/*.json, docs/benchmarks/*.json) into README.md and the pages of the programs.

They stand between markers; a test holds both equal.

python -m ottla.bench.readme
"""

import re
from pathlib import Path
from typing import Final

from ottla.bench.environment import REPOSITORY
from ottla.bench.page.documents import FOLDER, PROGRAM_PAGES, committed, readme_lines
from ottla.bench.report import RESULTS, Report, all_rows, latest, overview, preface

README: Final = REPOSITORY / "README.md"
#: Every document that has figures between markers.
DOCUMENTS: Final = (README, *(FOLDER / name for name in PROGRAM_PAGES))
_BLOCK: Final = re.compile(r"(<!-- figures of (\w+) -->\n).*?(<!-- end of figures -->\n)", re.DOTALL)
_WORKLOADS: Final = re.compile(r"(<!-- benchmarks -->\n).*?(<!-- end of benchmarks -->\n)", re.DOTALL)


def block(program: str, report: Report | None) -> str:
    """Return the text between the markers of one program."""
    if report is None:
        return f"\nThere is no result yet: `python -m ottla.bench.{program}` measures it.\n\n"
    return "\n".join(
        [
            "",
            f"`bench/results/{report.stem}.json`: {preface(report)}",
            "",
            *overview(report),
            "",
            f"<details><summary>All rows of {program}</summary>",
            "",
            *all_rows(report),
            "",
            "</details>",
            "",
            "",
        ]
    )


def with_figures(text: str, folder: Path = RESULTS, documents: Path = FOLDER) -> str:
    """Return the text with the latest figures between its markers.

    The figures are those of the results in `folder`, and of workloads in `documents`.
    """
    text = _BLOCK.sub(lambda found: found[1] + block(found[2], latest(found[2], folder)) + found[3], text)
    lines = "\n".join(["", *readme_lines(committed(documents)), ""])
    return _WORKLOADS.sub(lambda found: found[1] + lines + found[2], text)


def main() -> None:
    """Put the latest figures into all documents."""
    for document in DOCUMENTS:
        document.write_text(with_figures(document.read_text()))


if __name__ == "__main__":
    main()
