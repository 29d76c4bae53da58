"""The plain client of a directory reads and writes what it is said to, and leaves nothing behind."""

from ottla.bench.targets.store_clients import DirectoryClient


def test_a_topics_segments_are_read_and_no_others(tmp_path):
    folder = tmp_path / "kafka-tiered-storage"
    for topic, name, size in (
        ("a", "0-x.log", 3_000_000),
        ("a", "9-y.log", 5),
        ("a", "0-x.index", 7),
        ("ab", "0-z.log", 9),
    ):
        path = folder / f"{topic}-0-id" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    store = DirectoryClient(tmp_path)
    assert store.get_s("a")[1] == 3_000_005
    assert (store.has_any_of("ab"), store.has_any_of("b")) == (True, False)


def test_what_is_put_is_whole_and_removed(tmp_path, monkeypatch):
    source = tmp_path / "00000000000000000000.log"
    source.write_bytes(bytes(range(256)) * 10_000)
    tier = tmp_path / "tier"
    tier.mkdir()
    copies = []
    monkeypatch.setattr("os.fsync", lambda fd: copies.extend(path.read_bytes() for path in tier.iterdir()))
    assert DirectoryClient(tier).put_s([source]) > 0
    assert copies == [source.read_bytes()]
    assert not any(tier.iterdir())
