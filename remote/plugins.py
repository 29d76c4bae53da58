"""Plugins: the managers that `remote.log.storage.manager.class.name` and `remote.log.metadata.manager.class.name` name.

    directory, s3, minio                     the managers of this package
    org.apache.kafka...LocalTieredStorage    Kafka's name of `directory`, which has the same layout and settings
    package.module.Class                     any importable class
    a name without dots                      an entry point of the group `ottla.remote_storage`, or of
                                             `ottla.remote_metadata`

A class is instantiated without arguments and then configured once. Everything that can be wrong with it is an
InvalidConfig of one sentence, with the key, the value and the remedy: the broker does not start.

Source: RemoteLogManager.createRemoteStorageManager of Kafka 4.3.1. Differs: no class loader of its own for a
class path.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol, cast

from ottla.config.config_def import InvalidConfigValue
from ottla.config.extras import missing_extra
from ottla.protocol.errors import InvalidConfig
from ottla.remote.metadata_manager import RemoteLogMetadataManager
from ottla.remote.storage_manager import RemoteStorageManager

STORAGE_CLASS: Final = "remote.log.storage.manager.class.name"
STORAGE_PATH: Final = "remote.log.storage.manager.class.path"
STORAGE_PREFIX: Final = "remote.log.storage.manager.impl.prefix"
METADATA_CLASS: Final = "remote.log.metadata.manager.class.name"
METADATA_PATH: Final = "remote.log.metadata.manager.class.path"

#: The groups of entry points of other distributions.
STORAGE_GROUP: Final = "ottla.remote_storage"
METADATA_GROUP: Final = "ottla.remote_metadata"

#: Kafka's default metadata manager; ours has the same topic and records.
TOPIC_BASED: Final = "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"

_LOCAL_DIRECTORY: Final = "ottla.remote.stores.local_directory.LocalDirectory"
#: Imported on use: boto3 alone takes 40 MB.
_STORAGE_MANAGERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "directory": _LOCAL_DIRECTORY,
        "s3": "ottla.remote.stores.s3.S3Storage",
        "minio": "ottla.remote.stores.minio.MinioStorage",
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage": _LOCAL_DIRECTORY,
    }
)


class _Manager(Protocol):
    """The method that both plugin interfaces have."""

    def configure(self, configs: Mapping[str, object]) -> None: ...


def load_storage_manager(
    class_name: str | None,
    configs: Mapping[str, object],
    *,
    class_path: str | None = None,
    creates_store: bool = False,
) -> RemoteStorageManager:
    """Load and configure the storage manager of this name. Raises InvalidConfig.

    `creates_store`: the directory or bucket that it needs is created, too.

    `configs` are the `rsm.config.*` settings without the prefix, and `broker.id`. Imports and reads files: slow.
    """
    if class_name is None:
        raise InvalidConfig(
            f"{STORAGE_CLASS} is not set, but remote.log.storage.system.enable is true: set it to "
            f"{', '.join(list(_STORAGE_MANAGERS)[:3])} or to the dotted path of a class, or start with --tier."
        )
    found = _class_of(STORAGE_CLASS, _STORAGE_MANAGERS.get(class_name, class_name), STORAGE_GROUP,
                      path=(STORAGE_PATH, class_path))  # fmt: skip
    created = _create(STORAGE_CLASS, class_name, found, RemoteStorageManager, configs)
    assert isinstance(created, RemoteStorageManager)
    if creates_store:
        with _as_invalid_config(STORAGE_CLASS, class_name):
            created.create()
    return created


def storage_manager_of(properties: Mapping[str, str]) -> RemoteStorageManager:
    """Load the storage manager of a broker with these properties, for a program that is no broker.

    Raises InvalidConfig.
    """
    prefix = properties.get(STORAGE_PREFIX, "rsm.config.")
    settings = {
        name.removeprefix(prefix): text for name, text in properties.items() if name.startswith(prefix)
    }
    class_name = properties.get(STORAGE_CLASS)
    if _STORAGE_MANAGERS.get(class_name or "") == _LOCAL_DIRECTORY and (directory := settings.get("dir")):
        root = Path(directory) / "kafka-tiered-storage"
        try:
            is_there = root.is_dir()
        except OSError as error:
            raise InvalidConfig(f"{root} cannot be read: {error.strerror}") from error
        if not is_there:
            # Not waited for, as a broker does, but refused at once: the name may be mistyped.
            raise InvalidConfig(
                f"{directory} is no remote tier: there is no directory {root}, "
                "which a broker creates at its first start."
            )
    return load_storage_manager(class_name, settings, class_path=properties.get(STORAGE_PATH))


def load_metadata_manager(
    class_name: str,
    configs: Mapping[str, object],
    *,
    topic_based: Callable[[], RemoteLogMetadataManager],
    class_path: str | None = None,
) -> RemoteLogMetadataManager:
    """Load and configure the metadata manager of this name. Raises InvalidConfig.

    `configs` are the `rlmm.config.*` settings without the prefix, `broker.id`, `cluster.id` and `log.dir`.
    `topic_based` creates the one that keeps the metadata in a topic, which needs the broker's clients.
    """
    found: object = topic_based
    if class_name != TOPIC_BASED:
        found = _class_of(METADATA_CLASS, class_name, METADATA_GROUP, path=(METADATA_PATH, class_path))
    created = _create(METADATA_CLASS, class_name, found, RemoteLogMetadataManager, configs)
    assert isinstance(created, RemoteLogMetadataManager)
    return created


def _create(
    key: str, class_name: str, factory: object, kind: type, configs: Mapping[str, object]
) -> _Manager:
    """Return an instance of `kind`, configured."""
    if isinstance(factory, type) and not issubclass(factory, kind):
        raise InvalidConfigValue(key, class_name, f"a subclass of {kind.__module__}.{kind.__name__}")
    if not callable(factory):
        raise InvalidConfigValue(key, class_name, "a class")
    with _as_invalid_config(key, class_name):
        if isinstance(created := factory(), kind):
            manager = cast(_Manager, created)  # which `kind` has
            manager.configure(configs)
            return manager
    raise InvalidConfigValue(key, class_name, f"a subclass of {kind.__module__}.{kind.__name__}")


def _is_own(class_name: str) -> bool:
    """Return whether this is one of our storage managers, whose libraries are those of an extra."""
    return class_name in _STORAGE_MANAGERS or class_name in _STORAGE_MANAGERS.values()


@contextmanager
def _as_invalid_config(key: str, class_name: str) -> Iterator[None]:
    try:
        yield
    except InvalidConfig:
        raise
    except Exception as error:  # whatever a plugin raises
        if isinstance(error, ModuleNotFoundError) and _is_own(class_name):
            raise InvalidConfig(f"{key} is {class_name}, which {missing_extra('tier', error)}.") from error
        raise InvalidConfig(
            f"{key} is {class_name}, which cannot be configured: {type(error).__name__}: {error}. "
            "Correct its settings, or name another class."
        ) from error


def _class_of(key: str, name: str, group: str, *, path: tuple[str, str | None]) -> object:
    """Import the class, or load the entry point, of this name. Raises InvalidConfig."""
    _extend_import_path(*path)
    module_name, _, attribute = name.rpartition(".")
    try:
        if not module_name:
            return _entry_point(key, name, group)
        return getattr(importlib.import_module(module_name), attribute)
    except InvalidConfig:
        raise
    except AttributeError:
        raise InvalidConfigValue(
            key, name, f"the path of a class: {module_name} has no {attribute}"
        ) from None
    except Exception as error:  # whatever the import of a plugin raises
        if isinstance(error, ModuleNotFoundError) and _is_own(name):
            raise InvalidConfig(f"{key} is {name}, which {missing_extra('tier', error)}.") from error
        raise InvalidConfigValue(
            key,
            name,
            f"{_kinds(group)}; its import failed with {type(error).__name__}: {error}",
        ) from error


def _entry_point(key: str, name: str, group: str) -> object:
    found = entry_points(group=group, name=name)
    if not found:
        raise InvalidConfigValue(key, name, _kinds(group))
    return next(iter(found)).load()


def _kinds(group: str) -> str:
    """Return a description of the names that are possible, for an error message."""
    own = f"{', '.join(list(_STORAGE_MANAGERS)[:3])}, " if group == STORAGE_GROUP else ""
    others = sorted(each.name for each in entry_points(group=group))
    known = f" ({', '.join(others)})" if others else ""
    return f"{own}package.module.Class on the import path, or an entry point of the group {group}{known}"


def _extend_import_path(key: str, class_path: str | None) -> None:
    """Append a class path to the import path: later than the broker's own packages, which it cannot replace."""
    for entry in (class_path or "").split(os.pathsep):
        if not entry.strip():
            continue
        path = Path(entry.strip())
        if not (path.is_dir() or (path.is_file() and path.suffix in (".zip", ".whl"))):
            raise InvalidConfigValue(
                key,
                class_path,
                f"folders, wheels or zip files, separated by '{os.pathsep}': {path} is none of them",
            )
        if str(path) not in sys.path:
            sys.path.append(str(path))
