"""A port of 127.0.0.1 that stays a node's own, also while the node is down.

Without it another program, or a client that connects from this port, might have the port when the node starts again.
"""

import socket
import sys
from typing import Final

_HOST: Final = "127.0.0.1"


class HeldPort:
    """A bound socket that does not listen: connections to it are refused, and a node may listen at the same port."""

    def __init__(self, port: int = 0) -> None:
        """Hold this port; 0: any free one. Raises OSError if another program listens there."""
        self._socket = socket.socket()
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((_HOST, port))
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        if (
            sys.platform != "linux"
        ):  # elsewhere SO_REUSEADDR does not let a second socket listen beside this one
            self._socket.close()

    def close(self) -> None:
        """Release the port. A second call does nothing."""
        self._socket.close()
