"""A coverage-guided fuzzer on every entry point of `tests/unit/any_bytes/`, by hand.

    make fuzz                                          a minute for each entry point
    make fuzz ARGS="--seconds 600 metadata_snapshots"  ten minutes for this one

One process (atheris, which is libFuzzer) at a time, and the next one after its first find. A find is written to
`tests/unit/any_bytes/corpus/<entry point>/`, where the unit tests read it from then on;
inputs that only reach new code stay in `.fuzz/`, from which the next run continues.
"""

import argparse
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
FINDS = ROOT / "tests" / "unit" / "any_bytes" / "corpus"
PACKAGES = ["ottla"]
#: A find, too: an input that takes longer than this, in seconds, or a process that gets larger.
SLOWEST_S = 5
MOST_MEBIBYTES = 1024
#: Longer inputs show the same faults, later.
MAX_INPUT_BYTES = 4096


def main(arguments: Sequence[str]) -> int:
    """Run the fuzzer for each entry point; the number of those with a find."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each entry point")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="entry points; by default all")
    options = parser.parse_args(arguments)
    if options.one is not None:
        _fuzz(options.one, options.seconds)
        return 0
    from tests.unit.any_bytes.entry_points import ENTRY_POINTS

    unknown = set(options.names) - set(ENTRY_POINTS)
    if unknown:
        parser.error(f"there is no entry point {', '.join(sorted(unknown))}")
    found = []
    for name in options.names or ENTRY_POINTS:
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--seconds", str(options.seconds)]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            found.append(name)
    sys.stdout.write(f"{len(found)} entry points with a find: {', '.join(found) or 'none'}\n")
    return len(found)


def _fuzz(name: str, seconds: int) -> None:
    """libFuzzer for one entry point; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        from ottla.protocol.function_source import FunctionSource
        from tests.unit.any_bytes.entry_points import ENTRY_POINTS

        # Readers and writers are compiled from text when they are first used.
        compiled = FunctionSource.compile

        def instrumented(source: FunctionSource, function: str, title: str) -> Callable[..., Any]:
            found: Callable[..., Any] = atheris.instrument_func(compiled(source, function, title))
            source.globals[function] = found
            return found

        patch.object(FunctionSource, "compile", instrumented).start()
        entry = ENTRY_POINTS[name]
        work, finds = ROOT / ".fuzz" / name, FINDS / name
        for directory in (work, finds):
            directory.mkdir(parents=True, exist_ok=True)
        for seed in entry.seeds():
            (work / sha256(seed).hexdigest()[:16]).write_bytes(seed)
    logging.disable()
    flags = {
        "max_total_time": seconds,
        "timeout": SLOWEST_S,
        "rss_limit_mb": MOST_MEBIBYTES,
        "max_len": MAX_INPUT_BYTES,
        "artifact_prefix": f"{finds}/",
        "print_final_stats": 1,
        "verbosity": 0,
    }
    atheris.Setup(
        [name, *(f"-{flag}={value}" for flag, value in flags.items()), str(work), str(finds)], entry.check
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
