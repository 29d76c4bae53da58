"""Errors of Spark, in one line each."""

import re
from typing import Final

#: Lines such as `Caused by: java.net.BindException: Cannot assign requested address`, `ModuleNotFoundError:
#: No module named 'numpy'`
_REASON: Final = re.compile(r"(?:[\w$]+\.)*\w+(?:Error|Exception): (\S.*)")


class SparkCannotStart(Exception):
    """There is no Spark session; the message is the reason, in one sentence with the remedy."""


def reason_of(*texts: str) -> str:
    r"""The innermost cause in the first text that has exceptions of Java or Python; else the first line.

    >>> reason_of("Job aborted.\n\tat a.b.C.d(C.scala:1)\nCaused by: java.lang.ClassNotFoundException: a.b.E\n\tat f")
    'a.b.E'
    >>> reason_of("No such topic.\nSee there.")
    'No such topic.'
    """
    for text in texts:
        if found := _REASON.findall(text):
            return str(found[-1]).strip()
    return texts[0].strip().partition("\n")[0]
