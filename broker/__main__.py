"""`python -m broker [server.properties] ...` starts a broker; other commands of `ottla` by their names."""

import sys

from broker.main import main
from broker.tools import TOOLS

arguments = sys.argv[1:]
if not (arguments and arguments[0] in (*main.commands, *TOOLS)):
    arguments = ["broker", *arguments]
main(arguments, prog_name="python -m broker")
