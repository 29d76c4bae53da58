"""The dispatcher's view of a connection, for tests of request heads that are recognised."""


class Connection:
    client_host, listener_name = "127.0.0.1", "PLAINTEXT"

    def __init__(self):
        self.session = None
        self.timed = 0

    def time_reply(self, histogram):
        self.timed += 1


class ForgetfulConnection(Connection):
    """Nothing is recognised: every request is parsed."""

    @property
    def session(self):
        return None

    @session.setter
    def session(self, head):
        pass
