"""Bytes that are not UTF-8, and the text that Java's String decodes from them, and so Kafka."""

#: Hexadecimal bytes -> the text. Apache Kafka itself confirms it (`tests/compat/test_unusual_strings.py`).
NOT_UTF8 = [
    ("4dfc6c6c6572", "M\ufffdller"),  # Latin-1
    ("00ff00fe80", "\0\ufffd\0\ufffd\ufffd"),
    ("c080c1bf", "\ufffd" * 4),  # no character begins with these
    ("e08080", "\ufffd" * 3),  # longer than needed
    ("e28241e2", "\ufffdA\ufffd"),  # cut off
    ("eda08041", "\ufffdA"),  # a surrogate
    ("eda0", "\ufffd"),
    ("eda04142", "\ufffdAB"),
    ("edc3bced41", "\ufffd\u00fc\ufffdA"),
    ("edbfbfeda0bd", "\ufffd\ufffd"),
    ("ed9fbf", "\ud7ff"),  # the character before the surrogates
    ("f09f98", "\ufffd"),
    ("f09f9841f09f41f041", "\ufffdA\ufffdA\ufffdA"),
    ("f0808080", "\ufffd" * 4),
    ("f4908080f5", "\ufffd" * 5),
    ("f09f9880c3bc", "\U0001f600\u00fc"),
]
