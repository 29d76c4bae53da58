"""The C function is that of the installed package, with or without the package around it."""

import subprocess
import sys

import crc32c as whole_package
import pytest

from ottla.protocol import checksum


def test_it_is_the_function_of_the_package():
    assert checksum.crc32c is whole_package.crc32c
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(b"6789", checksum.crc32c(b"12345")) == 0xE3069283


@pytest.mark.parametrize("first", ["ottla.protocol.checksum", "crc32c"])
def test_the_order_of_imports_does_not_matter(first):
    code = f"import {first}, crc32c; from ottla.protocol.checksum import crc32c as ours; assert ours is crc32c.crc32c"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_with_other_files_is_imported_as_a_whole(monkeypatch):
    monkeypatch.delitem(sys.modules, "crc32c._crc32c")
    monkeypatch.setattr(checksum.PathFinder, "find_spec", lambda *_: None)
    assert checksum._function() is whole_package.crc32c
