"""The extras of the distribution: libraries that a plain install has not, since a plain broker does not need them."""

from typing import Literal

Extra = Literal["bench", "client", "metrics", "tier"]


def missing_extra(extra: Extra, error: ModuleNotFoundError) -> str:
    """Return the end of a sentence about the feature whose library could not be imported.

    Raises the error again if the module is one of Ottla's own: that is no missing extra, but a fault.

    >>> "It " + missing_extra("tier", ModuleNotFoundError(name="botocore.config"))
    "It needs botocore, which is not installed: `pip install 'ottla[tier]'` installs it"
    """
    package = (error.name or "").partition(".")[0]
    if package == "ottla":
        raise error
    return f"needs {package}, which is not installed: `pip install 'ottla[{extra}]'` installs it"
