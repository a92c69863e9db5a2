# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The normal form of texts: one place for training and every use of a model.

    text -> Normaliser.of -> text                  words of other letters -> conversion -> Forms -> their forms

ASCII is converted without the GIL.  Other words are converted by Python, many at a time, and kept: a text has
few different ones.  Must not know which parts there are (`normal_forms`).
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memchr, memset

from snailps.data._text cimport (BATCH, Token, WordTable, add_word, find_word, read_token,
                                 table_free, table_reserve)

from snailps.data.normal_forms import conversion, normal_parts
from snailps.data.word_counts import END_OF_LINE

cdef extern from "data/_normal_form.h" nogil:
    ctypedef struct TableOfForms "snail_forms":
        WordTable *words
        const uint8_t *text
        const int64_t *ends

    int reserve "snail_reserve"(Bytes *bytes, int64_t more) noexcept
    void append "snail_append"(Bytes *bytes, const void *data, int64_t length) noexcept
    int64_t normalise_text "snail_normalise"(
        const NormalRules *rules, const TableOfForms *forms, const uint8_t *data, int64_t size,
        int64_t at, int64_t stop, Bytes *out, Bytes *missing) noexcept

cdef enum:
    CHUNK_BYTES = 1 << 16       # after each of which missing forms are made
    WORDS_MAX = 1 << 16         # forms that are kept, and bytes of these words
    WORD_BYTES_MAX = 1 << 22


cdef class Forms:
    """Forms of words, in one thread at a time; a form may be of several words."""

    def __cinit__(self):
        table_reserve(&self.words, BATCH, 1024)

    def __dealloc__(self):
        table_free(&self.words)
        free(self.text.data)
        free(self.ends.data)

    cdef int add(self, const uint8_t *word, int64_t length, const uint8_t *form,
                 int64_t form_length) except -1:
        """Keep the form of a word, unless it has one."""
        cdef Token token
        table_reserve(&self.words, 1, length)
        if read_token(word, length, &token) != length or find_word(&self.words, &token) >= 0:
            return 0
        if reserve(&self.text, form_length) or reserve(&self.ends, sizeof(int64_t)):
            raise MemoryError("no memory for the normal forms of words")
        append(&self.text, form, form_length)
        append(&self.ends, &self.text.used, sizeof(int64_t))
        add_word(&self.words, &token)
        return 0

    cdef bint is_full(self) noexcept:
        return self.words.words > WORDS_MAX or self.words.arena_used > WORD_BYTES_MAX


cdef class Normaliser:
    """Gives texts their normal form; threads may share it.

    `parts`: of `normal_forms.PARTS`, separated by commas.  A token that begins with `label_prefix` stays as
    it is; no other one becomes a label or ``</s>``.
    """

    def __cinit__(self, str parts not None, *, bytes label_prefix not None):
        cdef int byte
        if not label_prefix:
            raise ValueError("expected a label_prefix of at least one byte, got none")
        self.parts = normal_parts(parts)
        names = self.parts.split(",")
        self.prefix, self.free = label_prefix, []
        self.convert = conversion(self.parts)
        self.rules.upper = 26 if "lower" in names or "casefold" in names else 0
        self.rules.digits = 10 if "digits" in names else 0
        self.rules.prefix = <const uint8_t *>self.prefix
        self.rules.prefix_size = len(label_prefix)
        self.rules.has_addresses = "urls" in names
        self.rules.has_forms = self.convert is not None
        memset(self.rules.is_special, 0, 128)
        memset(&self.rules.is_special[128], 1, 128)
        for byte in self.prefix[:1] + b"<" + (b"@:." if self.rules.has_addresses else b""):
            self.rules.is_special[byte] = True
        self.plain = self.rules
        self.plain.has_forms = False

    def of(self, const uint8_t[::1] text not None) -> bytes:
        """The normal form of a text that begins and ends between two tokens; it has as many lines."""
        cdef Bytes out
        cdef Py_ssize_t size = text.shape[0]
        memset(&out, 0, sizeof(Bytes))
        try:
            self.normalise(&text[0] if size else NULL, size, &out)
            return PyBytes_FromStringAndSize(<char *>out.data, out.used) if out.used else b""
        finally:
            free(out.data)

    cdef int normalise(self, const uint8_t *text, int64_t size, Bytes *out) except -1:
        """Append the normal form of a text; the caller frees `out`."""
        cdef Forms forms = self.free.pop() if self.free else Forms()
        cdef TableOfForms table
        cdef Bytes missing
        cdef int64_t at = 0, end = 0, used
        memset(&missing, 0, sizeof(Bytes))
        try:
            while at < size:
                table = TableOfForms(&forms.words, forms.text.data, <const int64_t *>forms.ends.data)
                missing.used = 0
                used = out.used
                with nogil:
                    end = normalise_text(&self.rules, &table, text, size, at, at + CHUNK_BYTES, out,
                                         &missing)
                if end < 0:
                    raise MemoryError(f"no memory for the normal form of {size} bytes of text")
                if missing.used:
                    out.used = used
                    if forms.is_full():
                        forms = Forms()
                    self.add_forms(forms, &missing)
                    continue
                at = end
            self.free.append(forms)
        finally:
            free(missing.data)
        return 0

    cdef int add_forms(self, Forms forms, const Bytes *missing) except -1:
        """Make the forms of words, each of which has a newline at its end."""
        cdef Bytes made
        cdef bytes converted = self.convert(
            PyBytes_FromStringAndSize(<char *>missing.data, missing.used))
        cdef const uint8_t *text = converted
        cdef const uint8_t *word = missing.data
        cdef const uint8_t *form
        cdef const uint8_t *word_end
        cdef const uint8_t *form_end
        cdef int64_t size = len(converted)
        memset(&made, 0, sizeof(Bytes))
        try:
            if normalise_text(&self.plain, NULL, text, size, 0, size, &made, NULL) < 0:
                raise MemoryError(f"no memory for the normal forms of {missing.used} bytes of words")
            form = made.data
            while word < missing.data + missing.used:
                word_end = <const uint8_t *>memchr(word, 10, missing.data + missing.used - word)
                form_end = <const uint8_t *>memchr(form, 10, made.data + made.used - form)
                if form_end == NULL:
                    raise RuntimeError("a word's normal form has another number of lines")
                if self.is_reserved(form[:form_end - form]):
                    forms.add(word, word_end - word, word, word_end - word)
                else:
                    forms.add(word, word_end - word, form, form_end - form)
                word, form = word_end + 1, form_end + 1
        finally:
            free(made.data)
        return 0

    cdef bint is_reserved(self, bytes form):
        """Whether a form has a label or an end of line, which would change what the line is."""
        return any([token == END_OF_LINE or token.startswith(self.prefix) for token in form.split()])
