"""The PySpark data source `ottla-tier`: its columns, its reader, and the filters that it understands."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.remote.spark_source.bounds import Bounds, Comparison, Filter
from ottla.remote.spark_source.options import InvalidOption, TierOptions
from ottla.remote.spark_source.planning import Part, plan
from ottla.remote.spark_source.reading import read_parts, store_of

#: The columns, as Spark's Kafka connector has them; `_HEADERS` and `_LEADER_EPOCH` are added only if an option, or the
#: query's own schema, has them.
_FIELDS: Final = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
_HEADERS: Final = StructField(
    "headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
)
_LEADER_EPOCH: Final = StructField("leaderEpoch", IntegerType())

_COMPARISONS: Final = {
    datasource.EqualTo: Comparison.ONE_OF,
    datasource.EqualNullSafe: Comparison.ONE_OF,
    datasource.In: Comparison.ONE_OF,
    datasource.GreaterThan: Comparison.MORE,
    datasource.GreaterThanOrEqual: Comparison.AT_LEAST,
    datasource.LessThan: Comparison.LESS,
    datasource.LessThanOrEqual: Comparison.AT_MOST,
}


class TierDataSource(DataSource):
    """The data source `ottla-tier`: the history of topics straight from the object store.

    `spark.dataSource.register` registers it.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format for `spark.read.format`."""
        return "ottla-tier"

    def schema(self) -> StructType:
        """Return all columns that the options select. Raises InvalidConfig."""
        options = TierOptions.of(self.options)
        more = [_HEADERS] * options.has_headers + [_LEADER_EPOCH] * options.has_leader_epoch
        return StructType([*_FIELDS, *more])

    def reader(self, schema: StructType) -> "TierReader":
        """Return a reader of these columns: `.schema("offset bigint, value binary")` reads two.

        Raises InvalidConfig.
        """
        options = TierOptions.of(self.options)
        return (FilteringReader if options.pushes_filters else TierReader)(options, schema)


class TierReader(DataSourceReader):
    """Plans in the driver, and reads in tasks."""

    def __init__(self, options: TierOptions, schema: StructType) -> None:
        _check_columns(schema)
        self._options = options
        self._schema = schema
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each task; its value is the parts of copies that the task reads."""
        tasks = plan(store_of(self._options.store), self._options, self._bounds)
        return [InputPartition(parts) for parts in tasks]

    def read(self, partition: InputPartition) -> Iterator[object]:
        """Yield the rows of a task, as Arrow batches."""
        parts: list[Part] | None = partition.value
        return read_parts(
            store_of(self._options.store), parts or (), to_arrow_schema(self._schema, timezone="UTC")
        )


class FilteringReader(TierReader):
    """A reader that leaves out the parts of copies which the query's filters exclude.

    Used only with the option pushFilters: Spark 4.2.0 plans a frame with the first filters that are pushed,
    and reads the same tasks for the frame's later queries without any, which then lack rows. It keeps that
    plan in the frame's table.
    """

    def pushFilters(self, filters: list[datasource.Filter]) -> Iterable[datasource.Filter]:
        """Narrow the bounds by the filters, and return all of them: Spark evaluates them again."""
        self._bounds = self._bounds.within(found for each in filters if (found := _understood(each)))
        return filters


def _understood(condition: datasource.Filter) -> Filter | None:
    comparison = _COMPARISONS.get(type(condition))
    if comparison is None or len(condition.attribute) != 1:
        return None
    is_in = isinstance(condition, datasource.In)
    values = tuple(condition.value) if is_in else (condition.value,)
    return Filter(column=condition.attribute[0], comparison=comparison, values=values)


def _check_columns(schema: StructType) -> None:
    """Raise InvalidOption for an unknown column, or one of another type."""
    known = {each.name: each.dataType for each in (*_FIELDS, _HEADERS, _LEADER_EPOCH)}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            names = ", ".join(f"{name} {kind.simpleString()}" for name, kind in known.items())
            raise InvalidOption(
                f"The schema has {field.name} {field.dataType.simpleString()}: the columns of ottla-tier are {names}."
            )
