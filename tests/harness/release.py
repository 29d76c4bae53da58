"""The release of Kafka beside which the tests run Ottla, and the metadata.version of new clusters."""

from pathlib import Path
from typing import Final

from ottla.bench.components.fetch import KAFKA_VERSION
from ottla.controller.formatting import bootstrap_records, feature_levels, metadata_version_of
from ottla.controller.metadata_log import snapshots
from ottla.metadata.features import LATEST_METADATA_VERSION, METADATA_VERSIONS
from ottla.storage.files import Files

#: As "4.3".
RELEASE: Final = KAFKA_VERSION.rpartition(".")[0]
LEVEL: Final = metadata_version_of(RELEASE)
#: As "4.3-IV0".
LEVEL_NAME: Final = METADATA_VERSIONS[LEVEL].name


def begin_at_release(metadata_log_dir: Path) -> None:
    """Make a new cluster, which begins in this folder, begin with the release's level; others are left alone."""
    if LEVEL == LATEST_METADATA_VERSION or list(metadata_log_dir.glob("__cluster_metadata-0/*.log")):
        return
    records = bootstrap_records(feature_levels(RELEASE, {}, has_dynamic_quorum=False))
    metadata_log_dir.mkdir(parents=True, exist_ok=True)
    snapshots.write_bootstrap(metadata_log_dir, records, Files(), now_ms=0)
