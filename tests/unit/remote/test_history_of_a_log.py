"""The PySpark source returns exactly the records that a consumer of the log's untiered twin gets.

The store is a real directory, and the metadata is made from its objects. Rows as columns are tested in tests/spark.
"""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reading_support import NOW_MS, STEPS, TieredTwins, committed, play, values_of

from ottla.protocol.records.record import records
from ottla.remote.errors import RemoteResourceNotFound, RemoteStorageError, RetriableRemoteStorageError
from ottla.remote.history.copy_batches import CopyBatches
from ottla.remote.spark_source.bounds import Bounds, Comparison, Filter
from ottla.remote.spark_source.options import TierOptions
from ottla.remote.spark_source.planning import plan
from ottla.runtime.simulated import Simulation
from tests.harness.faulty_store import Fault, flipped, refuse

NO_PAUSE = {"sleep": lambda seconds: None}


@pytest.fixture
def simulation():
    with Simulation(seed=1) as simulation:
        yield simulation


@pytest.fixture
def twins(simulation, tmp_path):
    twins = TieredTwins(tmp_path, simulation.runtime("broker"))
    yield twins
    twins.close()


def options(twins, **given):
    path = str(twins.store_folder)
    return TierOptions.of({"subscribe": "orders", "path": path, "maxPartitionBytes": "300"} | given)


EVERYTHING = Bounds()


def planned(twins, bounds=EVERYTHING, **given):
    """The tasks; the metadata is made from the objects."""
    return plan(twins.store.inner, options(twins, **given), bounds)


def rows(twins, tasks):
    """Offsets and timestamps of what tasks read, as `ottla.remote.spark_source.reading` does but without columns."""
    found = []
    with CopyBatches(twins.store, **NO_PAUSE) as reads:
        for part in (part for task in tasks for part in task):
            for header, batch in reads.of(
                part.copy,
                start_offset=part.start_offset,
                end_offset=part.end_offset,
                min_timestamp_ms=part.min_timestamp_ms,
            ):
                if not header.is_control and not part.is_aborted(header):
                    found += [
                        (each.offset, each.timestamp)
                        for each in records(batch)
                        if part.start_offset <= each.offset < part.end_offset
                    ]
    return found


def of_twin(twins, end, *, is_read_committed):
    """Offsets and timestamps of the untiered log's records before `end`."""
    log = twins.twin
    data = b"".join(bytes(batch) for _, batch in log.reader.records_since(0))
    aborted = log.reader.aborted_transactions(0, log.log_end_offset) if is_read_committed else []
    kept = set(committed(data, [(each.first_offset, each.producer_id) for each in aborted]))
    return [(offset, time) for offset, time, _ in values_of(data) if offset in kept and offset < end]


#: No copy is divided.
WHOLE = {"maxPartitionBytes": "1000000"}
UNCOMMITTED = {"kafka.isolation.level": "read_uncommitted"}


def filters_of(draw, end):
    """Some filters on offsets and times."""
    found = []
    for column, values in (("offset", st.integers(0, end)), ("timestamp", st.integers(-1, 110))):
        for comparison in draw(st.lists(st.sampled_from(list(Comparison)), max_size=2)):
            value = draw(values)
            if column == "timestamp":
                value = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=NOW_MS + value)
            found.append(Filter(column=column, comparison=comparison, values=(value,)))
    return found


def matches(row, filters):
    for each in filters:
        (value,) = each.values
        found = (
            row[0]
            if each.column == "offset"
            else datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=row[1])
        )
        holds = {
            Comparison.ONE_OF: found == value,
            Comparison.AT_LEAST: found >= value,
            Comparison.MORE: found > value,
            Comparison.AT_MOST: found <= value,
            Comparison.LESS: found < value,
        }
        if not holds[each.comparison]:
            return False
    return True


@given(
    # The last segment is open, and what is before it is copied.
    steps=STEPS.map(lambda steps: [*steps, ("append", 1, 0), ("roll", 0, 0), ("append", 1, 0)]),
    local=st.floats(0, 1),
    max_bytes=st.sampled_from([1, 300, 10**6]),
    data=st.data(),
)
@settings(max_examples=60)
def test_a_history_is_that_of_the_untiered_twin(tmp_path_factory, steps, local, max_bytes, data):
    folder = tmp_path_factory.mktemp("twins")
    with Simulation(seed=1) as simulation:
        twins = TieredTwins(folder, simulation.runtime("broker"))
        play(twins, steps)
        copies = twins.offload(int(twins.log.log_end_offset * local))
        if not copies:
            # A transaction that is open from the first segment on.
            with pytest.raises(RemoteStorageError, match="no objects of the topic orders"):
                planned(twins)
            return
        end = copies[-1].end_offset
        filters = filters_of(data.draw, end)
        for isolation in ({}, UNCOMMITTED):
            is_read_committed = not isolation
            tasks = planned(twins, Bounds().within(filters), maxPartitionBytes=str(max_bytes), **isolation)
            found = rows(twins, tasks)
            # Of transactions that are open at the end of the newest copy, the store does not know how they have ended.
            until = stable_end(twins.twin, end) if is_read_committed else end
            expected = of_twin(twins, until, is_read_committed=is_read_committed)
            # Spark evaluates the filters again: rows that do not match may be read, too.
            assert [each for each in found if matches(each, filters)] == [
                each for each in expected if matches(each, filters)
            ]
            assert set(found) <= set(expected)
            assert found == sorted(found)
        twins.close()


def stable_end(log, end):
    """The first offset of the transactions that are open at `end`; `end`: there are none."""
    firsts = {}
    for header, _ in log.reader.records_since(0):
        if header.base_offset >= end:
            break
        if header.is_control:
            firsts.pop(header.producer_id, None)
        elif header.is_transactional:
            firsts.setdefault(header.producer_id, header.base_offset)
    return min([end, *firsts.values()])


# -- what is fetched -------------------------------------------------------------------------------------


def fill(twins, count=12):
    """Offsets 0 to `count` - 1, each a millisecond later, in four segments or more; all of them copied."""
    for number in range(count):
        twins.producer.append(timestamp=NOW_MS + number)
    twins.producer.roll()
    return twins.offload(count)


def at(number):
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=NOW_MS + number)


def fetched(twins, operation):
    return [call.metadata.start_offset for call in twins.store.calls if call.operation == operation]


@pytest.mark.parametrize(("column", "comparison", "value", "rows_read"), [
    ("offset", ">=", 7,          range(7, 12)),
    ("offset", "<",  2,          range(2)),
    ("offset", "in", 4,          range(4, 5)),
    ("timestamp", ">", at(6),    range(6, 12)),
    ("timestamp", "in", at(9),   range(9, 12)),
    ("timestamp", ">=", at(12),  range(0)),
    ("offset", "<",  0,          range(0)),
])  # fmt: skip
def test_only_matching_copies_are_read(twins, column, comparison, value, rows_read):
    copies = fill(twins)
    assert len(copies) > 3
    bounds = Bounds().within([Filter(column=column, comparison=Comparison(comparison), values=(value,))])
    assert [offset for offset, _ in rows(twins, planned(twins, bounds, **WHOLE))] == list(rows_read)
    expected = {
        each.start_offset
        for each in copies
        if any(each.start_offset <= offset < each.end_offset for offset in rows_read)
    }
    assert set(fetched(twins, "segment")) == expected
    assert len(fetched(twins, "segment")) == len(expected)


def test_whole_copies_need_no_index(twins):
    copies = fill(twins)
    twins.store.calls.clear()
    rows(twins, planned(twins, **WHOLE))
    assert {call.operation for call in twins.store.calls} == {"segment"}
    assert len(twins.store.calls) == len(copies)


def test_large_copies_are_divided_and_small_ones_put_together(twins):
    copies = fill(twins)
    assert len(planned(twins, **WHOLE)) == 1
    assert len(planned(twins, maxPartitionBytes="1")) == 12
    assert 1 < len(planned(twins, maxPartitionBytes=str(2 * copies[0].segment_size_bytes))) < len(copies)


# -- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "expected"), [
    ({"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 8}}'}, range(5, 8)),
    ({"startingTimestamp": str(NOW_MS + 3), "endingTimestamp": str(NOW_MS + 10)},          range(3, 10)),
    ({"startingTimestamp": str(NOW_MS + 12)},                                              range(0)),
    ({"endingTimestamp": str(NOW_MS + 12)},                                                range(12)),
])  # fmt: skip
def test_where_it_begins_and_ends(twins, given, expected):
    fill(twins)
    assert [offset for offset, _ in rows(twins, planned(twins, **given))] == list(expected)


@pytest.mark.parametrize(("given", "sentence"), [
    ({"startingOffsets": '{"orders": {"0": 2}}'},
     r"asks for 2, but the store has \[3, 12\) of orders-0: retention has"),
    ({"endingOffsets": '{"orders": {"0": 13}}'},
     r"asks for 13, but the store has \[3, 12\) of orders-0: only brokers"),
])  # fmt: skip
def test_offsets_that_the_store_does_not_have(twins, given, sentence):
    copies = fill(twins)
    twins.store.delete_log_segment_data(copies[0])
    assert copies[0].end_offset == 3
    with pytest.raises(RemoteStorageError, match=sentence):
        planned(twins, **given)
    found = rows(twins, planned(twins, failOnDataLoss="false", **given))
    assert [offset for offset, _ in found] == list(range(3, 12))


def test_a_hole(twins):
    copies = fill(twins)
    twins.store.delete_log_segment_data(copies[1])
    with pytest.raises(RemoteStorageError, match=r"no copy in the store has the offsets \[3, 6\)"):
        planned(twins)
    found = rows(twins, planned(twins, failOnDataLoss="false"))
    assert [offset for offset, _ in found] == [0, 1, 2, *range(6, 12)]


# -- faults ----------------------------------------------------------------------------------------------


def test_a_store_that_answers_503_for_a_moment(twins):
    fill(twins)
    tasks = planned(twins)
    twins.store.faults.append(Fault("segment", refuse(503), times=2))
    assert len(rows(twins, tasks)) == 12
    twins.store.faults.append(Fault("segment", refuse(503), times=3))
    with pytest.raises(RetriableRemoteStorageError, match="503"):
        rows(twins, tasks)


def test_damaged_batches_are_not_returned(twins):
    fill(twins)
    tasks = planned(twins)
    twins.store.faults.append(Fault("segment", flipped(100), times=99))
    with pytest.raises(RemoteStorageError, match="wrong checksum"):
        rows(twins, tasks)


@pytest.mark.logs("is read without its index")
def test_an_index_that_contradicts_the_segment_is_not_used(twins):
    fill(twins)
    tasks = planned(twins, startingOffsets='{"orders": {"0": 5}}', **WHOLE)

    def moved(body):
        return b"".join(
            body[at : at + 4] + (int.from_bytes(body[at + 4 : at + 8]) - 1).to_bytes(4)
            for at in range(0, len(body), 8)
        )

    twins.store.faults.append(Fault("index", lambda body: body[:8] + moved(body[8:])))
    assert [offset for offset, _ in rows(twins, tasks)] == list(range(5, 12))


def test_a_copy_that_is_deleted_meanwhile(twins):
    copies = fill(twins)
    tasks = planned(twins)
    twins.store.delete_log_segment_data(copies[1])
    with pytest.raises(RemoteResourceNotFound):
        rows(twins, tasks)


@pytest.mark.logs("is left out")
def test_a_copy_that_is_being_written_is_left_out(twins):
    copies = fill(twins)
    (log,) = (
        path
        for path in twins.store_folder.rglob("*.log")
        if path.name.startswith(f"{copies[-1].start_offset:020}")
    )
    log.write_bytes(log.read_bytes()[:-1])
    assert [offset for offset, _ in rows(twins, planned(twins))] == list(range(copies[-1].start_offset))
