"""Arrow's files (Feather is one) and streams, as Hugging Face's save_to_disk writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from snailps.data.extras import optional_module
from snailps.data.file_kinds import HEAD_BYTES, refuse_foreign
from snailps.data.formats.arrow_table import ArrowTable, ArrowTarget, arrow_module, schema_with
from snailps.data.formats.table import Target
from snailps.data.unpacking import open_content

_BEGIN_BYTES = 8
"""Bytes of Arrow's files before the first message."""
_CODECS = {b"\x04\x22\x4d\x18": "lz4", b"\x28\xb5\x2f\xfd": "zstd"}


class File(ArrowTable):
    def _open(self) -> None:
        self._head = self._file.read(HEAD_BYTES)
        if self._head.startswith(b"FEA1"):
            refuse_foreign(self._head, self.path)
        self.schema = self._reader(None).schema

    @property
    def _is_file(self) -> bool:
        """Whether it is one of Arrow's files, whose batches may be read in any order."""
        return bool(self._head.startswith(b"ARROW1"))

    def _reader(self, names: Sequence[str] | None) -> Any:
        ipc = optional_module("pyarrow", f"reading {self.path}", "snailps[data]").ipc
        self._file.seek(0)
        included = None if names is None else [self.schema.get_field_index(one) for one in names]
        options = ipc.IpcReadOptions(included_fields=included)
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
        return _Target(file, schema_with(self.schema, added), codec, is_file=self._is_file)


class _Target(ArrowTarget):
    def __init__(self, file: IO[bytes], schema: Any, codec: str | None, *, is_file: bool) -> None:
        ipc = arrow_module().ipc
        options = ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=True)
        super().__init__(
            schema, (ipc.new_file if is_file else ipc.new_stream)(file, schema, options=options)
        )


def codec_of_messages(file: IO[bytes]) -> str | None:
    """The codec of Arrow's messages, by the first buffer: its length, then a frame of the codec."""
    messages = arrow_module().ipc.MessageReader.open_stream(file)
    with suppress(StopIteration):
        while (message := messages.read_next_message()).type == "schema":
            pass
        return _CODECS.get(bytes(message.body[8:12]))
    return None
