"""The floor (tests/unit/bench/test_bench_floor.py) takes what Kafka's own producer sends,
idempotent as it is by default.
"""

from ottla.bench.loads import LOADS
from ottla.bench.targets.floor import FloorServer


def test_the_loads_of_kafkas_client_that_have_a_floor_run(tmp_path):
    loads = [load for load in LOADS if load.has_floor and load.name.startswith("java")]
    floor = FloorServer(tmp_path / "floor")
    floor.start()
    try:
        samples = [load.run(floor, 0.05) for load in loads]
    finally:
        floor.kill()
    assert [load.name for load in loads] == ["java-produce-1024b-1p"]
    assert samples[0]["bytes_per_s"] > 0
