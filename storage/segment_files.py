"""The names of one segment's files: renamed, flushed, and removed together.

Every part of a segment takes the paths from here, so that a rename of the segment or of its directory is one
assignment.
"""

from pathlib import Path

from ottla.storage import file_names
from ottla.storage.files import Files


class SegmentFiles:
    """The four files of a segment, in its log's directory; `suffix` is their state (`ottla.storage.file_names`)."""

    __slots__ = ("base_offset", "directory", "suffix", "system")

    def __init__(self, directory: Path, base_offset: int, *, system: Files, suffix: str = "") -> None:
        self.directory = directory
        self.base_offset = base_offset
        #: The file system.
        self.system = system
        self.suffix = suffix

    def path_of(self, extension: str) -> Path:
        """The current path of the file with this extension."""
        return self.directory / file_names.of_offset(self.base_offset, extension, self.suffix)

    @property
    def may_use_reserve(self) -> bool:
        """Whether the files may have reserved descriptors: those of the metadata log, without which the node stops."""
        return self.directory.name == file_names.METADATA_LOG

    def change_suffix(self, suffix: str) -> None:
        """Rename all files, the log file first; a missing index file is ignored."""
        for extension in file_names.SEGMENT_EXTENSIONS:
            new = self.directory / file_names.of_offset(self.base_offset, extension, suffix)
            try:
                self.system.rename(self.path_of(extension), new)
            except FileNotFoundError:
                if extension == file_names.LOG:
                    raise
        self.suffix = suffix

    def flush(self, *, with_indexes: bool = True) -> None:
        """Wait until the files are on the disk. [any thread]

        Opens descriptors of its own: the event loop may rename or close the files meanwhile. The indexes of
        the active segment need not be flushed: recovery rebuilds them.
        """
        for extension in file_names.SEGMENT_EXTENSIONS if with_indexes else (file_names.LOG,):
            self.system.fsync_path(self.path_of(extension))

    def unlink(self) -> None:
        """Remove the files from the directory. [any thread]"""
        for extension in file_names.SEGMENT_EXTENSIONS:
            self.system.unlink(self.path_of(extension))

    def index_sizes(self) -> tuple[int, int]:
        """Bytes of the offset and time index files, 0 for a missing one; exact for a closed segment. [any thread]"""
        offsets = self.system.size_of(self.path_of(file_names.OFFSET_INDEX))
        times = self.system.size_of(self.path_of(file_names.TIME_INDEX))
        return offsets or 0, times or 0

    def modified_ms(self) -> int:
        """Modification time of the log file, for the retention of a segment without timestamps."""
        return self.system.modified_ms(self.path_of(file_names.LOG))

    def set_modified_ms(self, modified_ms: int) -> None:
        """Set the modification time to that of the sources of this compacted segment."""
        for extension in (file_names.LOG, file_names.OFFSET_INDEX, file_names.TIME_INDEX):
            self.system.set_modified_ms(self.path_of(extension), modified_ms)

    def __str__(self) -> str:
        return str(self.path_of(file_names.LOG))
