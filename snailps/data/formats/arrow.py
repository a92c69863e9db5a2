"""Arrow IPC: files (Feather version 2 is one), and streams, as Hugging Face's save_to_disk writes.

Must not know rows: `arrow_table` makes batches of what is opened here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from snailps.data.formats.arrow_table import ArrowTable, ArrowTarget, arrow_module, schema_with
from snailps.data.formats.table import Target
from snailps.files.extras import optional_module
from snailps.files.file_kinds import HEAD_BYTES, refuse_foreign
from snailps.files.unpacking import open_content

_BEGIN_BYTES = 8
"""Bytes of an Arrow file before its first message: the magic and two of padding."""
_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}
"""By the magic that a frame of the codec begins with."""


class ArrowFile(ArrowTable):
    def _open(self) -> None:
        self._head = self._file.read(HEAD_BYTES)
        if self._head.startswith(b"FEA1"):
            refuse_foreign(self._head, self.path)
        self.schema = self._reader(None).schema

    @property
    def _is_file(self) -> bool:
        """Whether it is an Arrow file, with an index of its batches; else it is a stream."""
        return bool(self._head.startswith(b"ARROW1"))

    def _reader(self, names: Sequence[str] | None) -> Any:
        ipc = optional_module("pyarrow", f"reading {self.path}", "snailps[data]").ipc
        self._file.seek(0)
        fields = None if names is None else [self.schema.get_field_index(name) for name in names]
        options = ipc.IpcReadOptions(included_fields=fields)
        return (ipc.open_file if self._is_file else ipc.open_stream)(self._file, options=options)

    def _record_batches(
        self, names: Sequence[str] | None, part: tuple[int, int] | None
    ) -> Iterator[Any]:
        reader = self._reader(names)
        if self._is_file:
            return map(reader.get_batch, range(reader.num_record_batches))
        return iter(reader)

    def target(self, file: IO[bytes], added: Mapping[str, type], column: str) -> Target:
        with open_content(self.path) as messages:
            messages.seek(_BEGIN_BYTES if self._is_file else 0)
            codec = codec_of_messages(messages)
        return _ArrowIpcTarget(file, schema_with(self.schema, added), codec, is_file=self._is_file)


class _ArrowIpcTarget(ArrowTarget):
    def __init__(self, file: IO[bytes], schema: Any, codec: str | None, *, is_file: bool) -> None:
        ipc = arrow_module().ipc
        options = ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=True)
        super().__init__(
            schema, (ipc.new_file if is_file else ipc.new_stream)(file, schema, options=options)
        )


def codec_of_messages(file: IO[bytes]) -> str | None:
    """The codec of Arrow messages; None: not packed, or no rows.

    The schema does not name it.  A packed buffer begins with its unpacked length, 8 bytes, and then
    the codec's own magic.
    """
    messages = arrow_module().ipc.MessageReader.open_stream(file)
    with suppress(StopIteration):
        while (message := messages.read_next_message()).type == "schema":
            pass
        return _CODECS.get(bytes(message.body[8:12]))
    return None
