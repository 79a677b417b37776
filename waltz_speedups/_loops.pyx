# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True, auto_pickle=False
"""The compiled twins; what each does is said where its reference stands, in `waltz_core`.

Rules. A twin does what is usual and leaves the rest to its reference, before it has changed anything. It reads and
makes value classes through the places of their slots, which it looks up, and only for classes that are made as it
expects; any other object is read and made as Python does it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_READ
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_FromLong, PyLong_FromLongLong
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
cdef extern from "Python.h":
    unsigned long long PyLong_AsUnsignedLongLongMask(object value) except? 0xFFFFFFFFFFFFFFFF

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from array import array

try:
    from isal.isal_zlib import crc32  # as waltz_core.base.checksum says
except ImportError:
    from zlib import crc32

cdef extern from *:
    """
    #include "structmember.h"
    #include <stdint.h>

    /* Place of a slot in the objects of a class, -1 if the name is anything else. */
    static Py_ssize_t waltz_slot(PyObject *cls, PyObject *name) {
        Py_ssize_t place = -1;
        PyObject *found = PyObject_GetAttr(cls, name);
        if (found == NULL) { PyErr_Clear(); return -1; }
        if (Py_TYPE(found) == &PyMemberDescr_Type) {
            PyMemberDescrObject *member = (PyMemberDescrObject *)found;
            if ((PyObject *)PyDescr_TYPE(member) == cls && member->d_member->type == T_OBJECT_EX)
                place = member->d_member->offset;
        }
        Py_DECREF(found);
        return place;
    }
    #define WALTZ_SLOT(object, place) (*(PyObject **)((char *)(object) + (place)))
    #define WALTZ_ALLOCATE(cls) (((PyTypeObject *)(cls))->tp_alloc((PyTypeObject *)(cls), 0))
    #define WALTZ_TYPE(object) (Py_TYPE(object))
    #define WALTZ_IS_BYTES(object) PyBytes_CheckExact(object)
    #define WALTZ_IS_INT(object) PyLong_CheckExact(object)

    static inline uint32_t get32(const unsigned char *p) {
        return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    static inline uint64_t get64(const unsigned char *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
    static inline void put32(unsigned char *p, uint32_t v) {
        p[0] = v >> 24; p[1] = v >> 16; p[2] = v >> 8; p[3] = v;
    }
    static inline void put64(unsigned char *p, uint64_t v) { put32(p, v >> 32); put32(p + 4, (uint32_t)v); }

    /* 1 and the number, or 0 without an exception: it is no int, or has more bits. */
    static inline int waltz_long(PyObject *value, long long *out) {
        int overflow;
        if (!PyLong_CheckExact(value)) return 0;
        *out = PyLong_AsLongLongAndOverflow(value, &overflow);
        return !overflow;
    }
    static inline int waltz_int32(PyObject *value, int32_t *out) {
        long long wide;
        if (!waltz_long(value, &wide) || wide < INT32_MIN || wide > INT32_MAX) return 0;
        *out = (int32_t)wide;
        return 1;
    }
    """
    Py_ssize_t waltz_slot(object cls, object name)
    PyObject *WALTZ_SLOT(object of, Py_ssize_t place)
    PyObject *WALTZ_ALLOCATE(object cls) except NULL
    PyTypeObject *WALTZ_TYPE(object of)
    bint WALTZ_IS_BYTES(object of)
    bint WALTZ_IS_INT(object of)
    uint32_t get32(const unsigned char *p) nogil
    uint64_t get64(const unsigned char *p) nogil
    void put32(unsigned char *p, uint32_t v) nogil
    void put64(unsigned char *p, uint64_t v) nogil
    bint waltz_long(object value, long long *out)
    bint waltz_int32(object value, int32_t *out)

cdef extern from *:
    """
    /* Gives a value to a slot that is empty yet. */
    static inline void waltz_fill(PyObject *of, Py_ssize_t place, PyObject *value) {
        Py_INCREF(value);
        WALTZ_SLOT(of, place) = value;
    }
    static inline PyObject *waltz_take(PyObject *made) { return made; }
    /* Takes what consists of bytes, numbers and tuples of numbers alone, so that no circle leads through it, out of the collector's sight:
       looking through each new object costs a reader more than making it. */
    static inline PyObject *waltz_take_plain(PyObject *made) {
        if (PyObject_IS_GC(made) && PyObject_GC_IsTracked(made)) PyObject_GC_UnTrack(made);
        return made;
    }
    """
    void waltz_fill(PyObject *of, Py_ssize_t place, object value)
    object waltz_take(PyObject *made)  # the reference passes on
    object waltz_take_plain(PyObject *made)

REFERENCES = {}  # name of a twin → the Python function

DEF MOST = 12


cdef class Fields:
    """Some attributes of objects, read by the places of their slots where the class has such."""

    cdef tuple names
    cdef object known  # the class that `places` are of
    cdef PyTypeObject *type
    cdef Py_ssize_t places[MOST]
    cdef bint direct

    def __cinit__(self, *names):
        assert len(names) <= MOST
        self.names = names
        self.type = NULL

    cdef int learn(self, object cls) except -1:
        cdef int at
        self.known = cls
        self.type = <PyTypeObject *>cls
        self.direct = True
        for at in range(len(self.names)):
            self.places[at] = waltz_slot(cls, self.names[at])
            self.direct = self.direct and self.places[at] > 0
        return 0

    cdef inline object get(self, object of, int number):
        cdef PyObject *value
        if WALTZ_TYPE(of) != self.type:
            self.learn(type(of))
        if self.direct:
            value = WALTZ_SLOT(of, self.places[number])
            if value != NULL:
                return <object>value
        return getattr(of, self.names[number])


cdef class Maker:
    """Makes objects of one attrs class, of all its attributes in their order."""

    cdef object cls
    cdef int count
    cdef Py_ssize_t places[MOST]
    cdef bint direct

    def __cinit__(self, cls):
        cdef int at
        fields = getattr(cls, "__attrs_attrs__", ())
        self.cls = cls
        self.count = len(fields)
        # What `__init__` would do beyond filling slots is not done here, so there must be nothing of the kind.
        self.direct = 0 < len(fields) <= MOST and not hasattr(cls, "__attrs_post_init__") and type(cls) is type
        if self.direct:
            for at in range(self.count):
                field = fields[at]
                self.places[at] = waltz_slot(cls, field.name)
                if self.places[at] <= 0 or field.converter is not None or field.validator is not None:
                    self.direct = False


cdef dict _makers = {}


cdef Maker maker_of(object cls):
    made = _makers.get(cls)
    if made is None:
        made = _makers[cls] = Maker(cls)
    return <Maker>made


cdef Fields _record = Fields("req_id", "header", "data", "checksum")
cdef Fields _header = Fields("req_id", "header")
cdef Fields _append = Fields("req_id", "client_mark", "write_locks", "read_locks", "append_locks", "data")
cdef bytes _NONE = b""
cdef bytes _UNNAMED = b"\xff\xff\xff\xff"
cdef tuple _NO_LOCKS = ()

# ---- frames of clients -----------------------------------------------------------------------


cdef object _hashes(const unsigned char *p, Py_ssize_t count):
    cdef Py_ssize_t at
    cdef object value
    if count == 0:
        return _NO_LOCKS
    made = PyTuple_New(count)
    for at in range(count):
        value = PyLong_FromLong(<int32_t>get32(p + 4 * at))
        Py_INCREF(value)
        PyTuple_SET_ITEM(made, at, value)
    return made


cdef object _one_append(bytes buffer, Py_ssize_t at, Py_ssize_t end, Maker maker, bint named):
    """The append whose body is from `at` to `end`; None if it is anything but usual."""
    cdef const unsigned char *p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    cdef Py_ssize_t start = at, place, index, size
    cdef int kind
    cdef int32_t count
    cdef list names = None
    cdef bint some = False
    cdef list hashes
    if end - at < 25:
        return None
    at += 25
    lists = []
    for kind in range(3):
        if end - at < 4:
            return None
        count = <int32_t>get32(p + at)
        at += 4
        if count == 0:
            lists.append(_NO_LOCKS)
            continue
        if count < 0:
            return None
        if not named:
            if (end - at) // 4 < count:
                return None
            lists.append(_hashes(p + at, count))
            at += 4 * <Py_ssize_t>count
            continue
        if (end - at) // 5 < count:
            return None
        if names is None:
            names = []
        hashes = []
        for index in range(count):
            if end - at < 5:
                return None
            hashes.append(PyLong_FromLong(<int32_t>get32(p + at)))
            at += 5
            if p[at - 1] != 1:
                names.append(_UNNAMED)
                continue
            if end - at < 4:
                return None
            size = <int32_t>get32(p + at)
            if size < 0 or end - at < size + 12:
                return None
            names.append(PyBytes_FromStringAndSize(<const char *>p + at, size + 12))
            at += size + 12
            some = True
        lists.append(tuple(hashes))
    if end - at < 8:
        return None
    header = PyLong_FromLong(<int32_t>get32(p + at))
    size = <int32_t>get32(p + at + 4)
    at += 8
    if size < 0 or end - at != size + 4:
        return None
    data = PyBytes_FromStringAndSize(<const char *>p + at, size)
    if <uint32_t>crc32(data) != get32(p + at + size):
        return None
    checksum = PyLong_FromLong(<int32_t>get32(p + at + size))
    req_id = PyBytes_FromStringAndSize(<const char *>p + start + 1, 16)
    mark = PyLong_FromLongLong(<int64_t>get64(p + start + 17))
    packed = _NONE
    if some:
        packed = names[0] if len(names) == 1 else _NONE.join(names)
    if not maker.direct or maker.count != (9 if named else 8):
        if named:
            return maker.cls(req_id, mark, lists[0], lists[1], lists[2], header, data, checksum, packed)
        return maker.cls(req_id, mark, lists[0], lists[1], lists[2], header, data, checksum)
    cdef PyObject *made = WALTZ_ALLOCATE(maker.cls)
    waltz_fill(made, maker.places[0], req_id)
    waltz_fill(made, maker.places[1], mark)
    waltz_fill(made, maker.places[2], lists[0])
    waltz_fill(made, maker.places[3], lists[1])
    waltz_fill(made, maker.places[4], lists[2])
    waltz_fill(made, maker.places[5], header)
    waltz_fill(made, maker.places[6], data)
    waltz_fill(made, maker.places[7], checksum)
    if named:
        waltz_fill(made, maker.places[8], packed)
    return waltz_take_plain(made)


def cut_appends(buffer, Py_ssize_t at, Py_ssize_t limit, list out, cls, decode, bint named):
    cdef const unsigned char *p
    cdef Py_ssize_t size, length, end
    cdef unsigned char head[3]
    cdef unsigned char kind
    if type(buffer) is not bytes or at < 0:
        return REFERENCES["cut_appends"](buffer, at, limit, out, cls, decode, named)
    p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    size = PyBytes_GET_SIZE(buffer)
    if size - at < 8:
        return at
    memcpy(head, p + at, 3)
    kind = p[at + 7]
    cdef Maker maker = maker_of(cls)
    while size - at >= 8 and memcmp(p + at, head, 3) == 0 and p[at + 7] == kind:
        length = <int32_t>get32(p + at + 3)
        end = at + 7 + length
        if not 0 < length <= limit or end > size:
            break
        message = _one_append(<bytes>buffer, at + 7, end, maker, named)
        if message is None:
            message = decode(buffer, at + 7, end)
            if message is None:
                break
        out.append(message)
        at = end
    return at


def cut_feed(buffer, Py_ssize_t at, list out, cls):
    cdef const unsigned char *p
    cdef Py_ssize_t size
    cdef unsigned char head[8]
    cdef PyObject *made
    if type(buffer) is not bytes or at < 0:
        return REFERENCES["cut_feed"](buffer, at, out, cls)
    p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    size = PyBytes_GET_SIZE(buffer)
    if size - at < 8 or memcmp(p + at + 3, b"\x00\x00\x00\x1d\x04", 5) != 0:
        return at
    memcpy(head, p + at, 8)
    cdef Maker maker = maker_of(cls)
    cdef bint direct = maker.direct and maker.count == 3
    while size - at >= 36 and memcmp(p + at, head, 8) == 0:
        req_id = PyBytes_FromStringAndSize(<const char *>p + at + 8, 16)
        transaction_id = PyLong_FromLongLong(<int64_t>get64(p + at + 24))
        header = PyLong_FromLong(<int32_t>get32(p + at + 32))
        if direct:
            made = WALTZ_ALLOCATE(cls)
            waltz_fill(made, maker.places[0], req_id)
            waltz_fill(made, maker.places[1], transaction_id)
            waltz_fill(made, maker.places[2], header)
            out.append(waltz_take_plain(made))
        else:
            out.append(cls(req_id, transaction_id, header))
        at += 36
    return at


cdef Fields _fed = Fields("req_id", "transaction_id", "header")


def end_of_run(messages, Py_ssize_t at, cls):
    cdef Py_ssize_t count
    if type(messages) is not list or not 0 <= at < PyList_GET_SIZE(messages):
        return REFERENCES["end_of_run"](messages, at, cls)
    first = _fed.get(<object>PyList_GET_ITEM(messages, at), 0)
    if type(first) is not bytes or PyBytes_GET_SIZE(first) != 16:
        return REFERENCES["end_of_run"](messages, at, cls)
    cdef Py_ssize_t begin = at
    count = PyList_GET_SIZE(messages)
    while at < count and WALTZ_TYPE(<object>PyList_GET_ITEM(messages, at)) == <PyTypeObject *>cls:
        req_id = _fed.get(<object>PyList_GET_ITEM(messages, at), 0)
        if type(req_id) is not bytes or PyBytes_GET_SIZE(req_id) != 16:
            return REFERENCES["end_of_run"](messages, begin, cls)
        if memcmp(PyBytes_AS_STRING(req_id) + 8, PyBytes_AS_STRING(first) + 8, 4) != 0:
            break
        at += 1
    return at


def mark_after(run, seen):
    cdef long long mark, number
    cdef Py_ssize_t at
    if type(run) is not list or not waltz_long(seen, &mark):
        return REFERENCES["mark_after"](run, seen)
    for at in range(PyList_GET_SIZE(run)):
        if not waltz_long(_fed.get(<object>PyList_GET_ITEM(run, at), 1), &number):
            return REFERENCES["mark_after"](run, seen)
        if number > mark and <uint64_t>number - <uint64_t>mark == 1:  # there is none behind the highest
            mark = number
    return mark


def hand_out(list handed, cls, partition, records, payloads, fetch, last):
    cdef Py_ssize_t at, count
    cdef PyObject *made
    cdef Maker maker = maker_of(cls)
    if not maker.direct or maker.count != 6 or type(records) is not list or type(payloads) not in (list, tuple):
        return REFERENCES["hand_out"](handed, cls, partition, records, payloads, fetch, last)
    count = min(PyList_GET_SIZE(records), len(payloads))
    cdef bint plain = WALTZ_IS_INT(partition)
    for at in range(count):
        record = <object>PyList_GET_ITEM(records, at)
        header = _fed.get(record, 2)
        if last is not None and header == last:
            return at
        transaction_id, req_id, data = _fed.get(record, 1), _fed.get(record, 0), payloads[at]
        made = WALTZ_ALLOCATE(cls)
        waltz_fill(made, maker.places[0], partition)
        waltz_fill(made, maker.places[1], transaction_id)
        waltz_fill(made, maker.places[2], header)
        waltz_fill(made, maker.places[3], req_id)
        waltz_fill(made, maker.places[4], data)
        waltz_fill(made, maker.places[5], fetch if data is None else None)
        handed.append(waltz_take_plain(made) if plain and WALTZ_IS_BYTES(data) else waltz_take(made))
    return count


# ---- records ---------------------------------------------------------------------------------


cdef inline uint32_t _checksum(const unsigned char *p, Py_ssize_t size) except? 0:
    """CRC-32 of a piece of a buffer, which outlives the call."""
    # For the function, a copy of little is cheaper to make than a view: 0.05 µs instead of 0.08 for 200 bytes.
    if size <= 2048:
        return <uint32_t>crc32(PyBytes_FromStringAndSize(<const char *>p, size))
    return <uint32_t>crc32(PyMemoryView_FromMemory(<char *>p, size, PyBUF_READ))


def encode_records(first, appends):
    cdef Py_ssize_t count, at, total = 0, size
    cdef long long transaction_id
    cdef int32_t number
    cdef unsigned char *p
    cdef object data, req_id, one
    if type(appends) is tuple:
        appends = list(appends)
    if not waltz_long(first, &transaction_id) or type(appends) is not list:
        return REFERENCES["encode_records"](first, appends)
    count = PyList_GET_SIZE(appends)
    for at in range(count):
        data = _record.get(<object>PyList_GET_ITEM(appends, at), 2)
        if not WALTZ_IS_BYTES(data):
            return REFERENCES["encode_records"](first, appends)
        total += PyBytes_GET_SIZE(data)
    if transaction_id > 0x7FFFFFFFFFFFFFFF - count:
        return REFERENCES["encode_records"](first, appends)
    made = PyBytes_FromStringAndSize(NULL, total + 36 * count)
    p = <unsigned char *>PyBytes_AS_STRING(made)
    for at in range(count):
        one = <object>PyList_GET_ITEM(appends, at)
        data = _record.get(one, 2)
        req_id = _record.get(one, 0)
        if not WALTZ_IS_BYTES(req_id) or PyBytes_GET_SIZE(req_id) != 16:
            return REFERENCES["encode_records"](first, appends)
        put64(p, transaction_id + at)
        memcpy(p + 8, PyBytes_AS_STRING(req_id), 16)
        if not waltz_int32(_record.get(one, 1), &number):
            return REFERENCES["encode_records"](first, appends)
        put32(p + 24, number)
        size = PyBytes_GET_SIZE(data)
        put32(p + 28, size)
        memcpy(p + 32, PyBytes_AS_STRING(data), size)
        if not waltz_int32(_record.get(one, 3), &number):
            return REFERENCES["encode_records"](first, appends)
        put32(p + 32 + size, number)
        p += 36 + size
    return made


def encode_frames(first, transactions):
    cdef Py_ssize_t count, at
    cdef long long transaction_id
    cdef int32_t number
    cdef unsigned char *p
    cdef object req_id, one
    if type(transactions) is tuple:
        transactions = list(transactions)
    if not waltz_long(first, &transaction_id) or type(transactions) is not list:
        return REFERENCES["encode_frames"](first, transactions)
    count = PyList_GET_SIZE(transactions)
    if transaction_id > 0x7FFFFFFFFFFFFFFF - count:
        return REFERENCES["encode_frames"](first, transactions)
    made = PyBytes_FromStringAndSize(NULL, 36 * count)
    p = <unsigned char *>PyBytes_AS_STRING(made)
    for at in range(count):
        one = <object>PyList_GET_ITEM(transactions, at)
        req_id = _header.get(one, 0)
        if not WALTZ_IS_BYTES(req_id) or PyBytes_GET_SIZE(req_id) != 16 or not waltz_int32(_header.get(one, 1), &number):
            return REFERENCES["encode_frames"](first, transactions)
        memcpy(p, b"L\x00\x00\x00\x00\x00\x1d\x04", 8)
        memcpy(p + 8, PyBytes_AS_STRING(req_id), 16)
        put64(p + 24, transaction_id + at)
        put32(p + 32, number)
        p += 36
    return made


def transcode_records(buffer, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count):
    cdef const unsigned char *p
    cdef unsigned char *q
    cdef Py_ssize_t length, done
    cdef int64_t following
    cdef list parts = []
    if type(buffer) is not bytes or at < 0 or count < 1 or end > PyBytes_GET_SIZE(buffer) or end - at < 8:
        return REFERENCES["transcode_records"](buffer, at, end, count)
    p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    following = <int64_t>get64(p + at)
    if following > 0x7FFFFFFFFFFFFFFF - count:
        return REFERENCES["transcode_records"](buffer, at, end, count)
    for done in range(count):
        if end - at < 36 or <int64_t>get64(p + at) != following:
            return None
        following += 1
        length = <int32_t>get32(p + at + 28)
        if length < 0 or end - at - 36 < length:
            return None
        # On disk the checksum of the data stands before it, and one of all that behind.
        body = PyBytes_FromStringAndSize(NULL, 36 + length)
        q = <unsigned char *>PyBytes_AS_STRING(body)
        memcpy(q, p + at, 32)
        memcpy(q + 32, p + at + 32 + length, 4)
        memcpy(q + 36, p + at + 32, length)
        part = PyBytes_FromStringAndSize(NULL, 40 + length)
        memcpy(PyBytes_AS_STRING(part), q, 36 + length)
        put32(<unsigned char *>PyBytes_AS_STRING(part) + 36 + length, <uint32_t>crc32(body))
        parts.append(part)
        at += 36 + length
    return parts, at


def transcode_disk(buffer, first, count):
    cdef const unsigned char *p
    cdef unsigned char *q
    cdef Py_ssize_t at, end, size, stop, length, done
    cdef long long expected, most
    if (
        type(buffer) is not bytes
        or not waltz_long(first, &expected)
        or not waltz_long(count, &most)
        or not 0 <= expected
        or most < 0
        or expected > 0x7FFFFFFFFFFFFFFE - most
    ):
        return REFERENCES["transcode_disk"](buffer, first, count)
    p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    at, size, stop = 0, PyBytes_GET_SIZE(buffer), 0
    starts = [0]
    # First what is sound, then all of it at once: how long the result is, is known then.
    for done in range(most):
        if size - at < 40 or <int64_t>get64(p + at) != expected + done:
            break
        length = <int32_t>get32(p + at + 28)
        if length < 0 or size - at - 40 < length:
            break
        end = at + 36 + length
        if _checksum(p + at, end - at) != get32(p + end):
            break
        at = end + 4
        stop += 36 + length
        starts.append(stop)
    encoded = PyBytes_FromStringAndSize(NULL, stop)
    q = <unsigned char *>PyBytes_AS_STRING(encoded)
    at = 0
    for done in range(PyList_GET_SIZE(starts) - 1):
        length = <int32_t>get32(p + at + 28)
        memcpy(q, p + at, 32)
        memcpy(q + 32, p + at + 36, length)
        memcpy(q + 32 + length, p + at + 32, 4)
        q += 36 + length
        at += 40 + length
    return encoded, starts


def cut_records(buffer, at, end, count):
    cdef const unsigned char *p
    cdef long long place, begin, stop, many, number
    cdef int32_t size
    if (
        type(buffer) is not bytes
        or not waltz_long(at, &place)
        or not waltz_long(end, &stop)
        or not waltz_long(count, &many)
        or not 0 <= place <= stop <= PyBytes_GET_SIZE(buffer)
    ):
        return REFERENCES["cut_records"](buffer, at, end, count)
    p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    begin = place
    starts = [0]
    for number in range(many):
        if stop - place < 36:
            return REFERENCES["cut_records"](buffer, at, end, count)
        size = <int32_t>get32(p + place + 28)
        if size < 0 or stop - place - 36 < size:
            return REFERENCES["cut_records"](buffer, at, end, count)
        place += 36 + size
        starts.append(PyLong_FromLongLong(place - begin))
    return starts


def data_of(buffer, starts, count):
    cdef Py_ssize_t number
    cdef long long most, begin, end
    if type(buffer) is not bytes or type(starts) is not list or not waltz_long(count, &most) or most < 0:
        return REFERENCES["data_of"](buffer, starts, count)
    most = min(most, PyList_GET_SIZE(starts) - 1)
    data = []
    for number in range(most):
        if (
            not waltz_long(starts[number], &begin)
            or not waltz_long(starts[number + 1], &end)
            or not 0 <= begin <= end - 36
            or end > PyBytes_GET_SIZE(buffer)
        ):
            return REFERENCES["data_of"](buffer, starts, count)
        data.append(PyBytes_FromStringAndSize(PyBytes_AS_STRING(buffer) + begin + 32, end - begin - 36))
    return data


def sound_count(buffer, starts, first):
    cdef const unsigned char *p
    cdef long long place, following, expected
    cdef Py_ssize_t number
    if type(buffer) is not bytes or type(starts) is not list or not waltz_long(first, &expected):
        return REFERENCES["sound_count"](buffer, starts, first)
    if PyList_GET_SIZE(starts) == 0 or not waltz_long(starts[0], &place):
        return REFERENCES["sound_count"](buffer, starts, first)
    p = <const unsigned char *>PyBytes_AS_STRING(buffer)
    for number in range(PyList_GET_SIZE(starts) - 1):
        if (
            not waltz_long(starts[number + 1], &following)
            or not 0 <= place <= following - 36
            or following > PyBytes_GET_SIZE(buffer)
            or expected > 0x7FFFFFFFFFFFFFFE
        ):
            return REFERENCES["sound_count"](buffer, starts, first)
        if <int64_t>get64(p + place) != expected:
            return number
        if _checksum(p + place + 32, following - place - 36) != get32(p + following - 4):
            return number
        expected += 1
        place = following
    return PyList_GET_SIZE(starts) - 1


def cut_headers(encoded, starts):
    cdef const unsigned char *p
    cdef unsigned char *q
    cdef Py_ssize_t count, number
    cdef long long begin
    if type(encoded) is not bytes or type(starts) is not list or PyList_GET_SIZE(starts) == 0:
        return REFERENCES["cut_headers"](encoded, starts)
    p = <const unsigned char *>PyBytes_AS_STRING(encoded)
    count = PyList_GET_SIZE(starts) - 1
    made = PyBytes_FromStringAndSize(NULL, 28 * count)
    q = <unsigned char *>PyBytes_AS_STRING(made)
    for number in range(count):
        if (
            not waltz_long(<object>PyList_GET_ITEM(starts, number), &begin)
            or not 0 <= begin <= PyBytes_GET_SIZE(encoded) - 28
        ):
            return REFERENCES["cut_headers"](encoded, starts)
        memcpy(q, p + begin, 28)
        q += 28
    return made


def dense_ids(encoded, first):
    cdef const unsigned char *p
    cdef Py_ssize_t count, number
    cdef long long begin
    if type(encoded) is not bytes or PyBytes_GET_SIZE(encoded) % 28 != 0 or not waltz_long(first, &begin):
        return REFERENCES["dense_ids"](encoded, first)
    p = <const unsigned char *>PyBytes_AS_STRING(encoded)
    count = PyBytes_GET_SIZE(encoded) // 28
    if begin > 0x7FFFFFFFFFFFFFFF - count:
        return REFERENCES["dense_ids"](encoded, first)
    for number in range(count):
        if <int64_t>get64(p + 28 * number) != begin + number:
            return False
    return True


def frames_of_headers(encoded):
    cdef const unsigned char *p
    cdef unsigned char *q
    cdef Py_ssize_t number
    if type(encoded) is not bytes or PyBytes_GET_SIZE(encoded) % 28 != 0:
        return REFERENCES["frames_of_headers"](encoded)
    p = <const unsigned char *>PyBytes_AS_STRING(encoded)
    made = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(encoded) // 28 * 36)
    q = <unsigned char *>PyBytes_AS_STRING(made)
    for number in range(PyBytes_GET_SIZE(encoded) // 28):
        memcpy(q, b"L\x00\x00\x00\x00\x00\x1d\x04", 8)
        memcpy(q + 8, p + 8, 16)
        memcpy(q + 24, p, 8)
        memcpy(q + 32, p + 24, 4)
        p += 28
        q += 36
    return made


def plausible(entries, end):
    cdef const uint64_t[::1] places
    cdef Py_ssize_t number
    cdef uint64_t previous = 128 - 40
    cdef long long last
    if type(entries) is not array or entries.typecode != "Q" or not waltz_long(end, &last) or last < 0:
        return REFERENCES["plausible"](entries, end)
    places = entries
    for number in range(places.shape[0]):
        if places[number] < 40 or places[number] - 40 < previous:
            return False
        previous = places[number]
    return last >= 40 and previous <= <uint64_t>(last - 40)


# ---- the way of an append through a server ---------------------------------------------------


def all_acceptable(requests, expected, begin, size_max):
    cdef Py_ssize_t at, start, length, most
    cdef const char *wanted
    cdef object req_id, data, one
    cdef long long first, largest
    if (
        type(requests) is not list
        or not WALTZ_IS_BYTES(expected)
        or not waltz_long(begin, &first)
        or not waltz_long(size_max, &largest)
        or not 0 <= first <= 8
        or PyBytes_GET_SIZE(expected) != 8 - first
    ):
        return REFERENCES["all_acceptable"](requests, expected, begin, size_max)
    start, most = first, largest
    length = 8 - start
    wanted = PyBytes_AS_STRING(expected)
    for at in range(PyList_GET_SIZE(requests)):
        one = <object>PyList_GET_ITEM(requests, at)
        req_id, data = _append.get(one, 0), _append.get(one, 5)
        if not WALTZ_IS_BYTES(req_id) or PyBytes_GET_SIZE(req_id) != 16 or not WALTZ_IS_BYTES(data):
            return REFERENCES["all_acceptable"](requests, expected, begin, size_max)
        if memcmp(PyBytes_AS_STRING(req_id) + start, wanted, length) != 0 or PyBytes_GET_SIZE(data) > most:
            return False
        if _append.get(one, 2) is None or _append.get(one, 3) is None or _append.get(one, 4) is None:
            return False
    return True


def payload_bytes(requests, Py_ssize_t first, Py_ssize_t end):
    cdef Py_ssize_t at, total = 0
    cdef object data
    if type(requests) is not list or not 0 <= first <= end <= PyList_GET_SIZE(requests):
        return REFERENCES["payload_bytes"](requests, first, end)
    for at in range(first, end):
        data = _append.get(<object>PyList_GET_ITEM(requests, at), 5)
        if not WALTZ_IS_BYTES(data):
            return REFERENCES["payload_bytes"](requests, first, end)
        total += PyBytes_GET_SIZE(data)
    return total


cdef inline uint32_t _next(uint32_t value) noexcept nogil:
    return (value * 1103515245u + 12345u) & 0x3FFFFFFF


cdef inline uint32_t _low(object lock_hash) except? 0xFFFFFFFF:
    return <uint32_t>PyLong_AsUnsignedLongLongMask(lock_hash)


def take_run(marks, dict taken, requests, Py_ssize_t at, Py_ssize_t end, known, room, transaction_id):
    cdef int64_t[::1] table
    cdef Py_ssize_t size = 0
    cdef long long client_mark, highest, limit, mark, other, holder, used = 0, most, number
    cdef uint32_t value
    cdef bint locked = False
    if (
        type(requests) is not list
        or not 0 <= at <= end <= PyList_GET_SIZE(requests)
        or not waltz_long(known, &limit)
        or not waltz_long(room, &most)
        or not waltz_long(transaction_id, &number)
    ):
        return REFERENCES["take_run"](marks, taken, requests, at, end, known, room, transaction_id)
    while at < end and used < most:
        one = <object>PyList_GET_ITEM(requests, at)
        data = _append.get(one, 5)
        client_mark = _append.get(one, 1)
        if client_mark > limit or client_mark < -1:
            break
        write, read, append = _append.get(one, 2), _append.get(one, 3), _append.get(one, 4)
        if write or read or append:
            if size == 0:
                table = marks
                size = table.shape[0]
            highest = -1
            for locks in (write, read):
                if locks is None:
                    continue
                for lock_hash in <tuple?>locks:
                    value = _next(_low(lock_hash))
                    mark = table[value % size]
                    value = _next(value)
                    other = table[value % size]
                    if other < mark:
                        mark = other
                    value = _next(value)
                    other = table[value % size]
                    if other < mark:
                        mark = other
                    if mark > highest:
                        highest = mark
                    found = taken.get(lock_hash)
                    if found is not None:
                        holder = found
                        if holder > highest:
                            highest = holder
            if highest > client_mark:
                break
            mine = PyLong_FromLongLong(number)
            for locks in (write, append):
                if locks is None:
                    continue
                for lock_hash in <tuple?>locks:
                    taken[lock_hash] = mine
            locked = True
        used += len(data) + 40
        at += 1
        number += 1
    return at, used, locked


def release_run(marks, dict taken, requests, first, list hashes, list ids):
    cdef int64_t[::1] table
    cdef Py_ssize_t size = 0, at
    cdef long long number
    cdef uint32_t value
    if type(requests) is not list or not waltz_long(first, &number):
        REFERENCES["release_run"](marks, taken, requests, first, hashes, ids)
        return
    for at in range(PyList_GET_SIZE(requests)):
        one = <object>PyList_GET_ITEM(requests, at)
        write, append = _append.get(one, 2), _append.get(one, 4)
        if write or append:
            if size == 0:
                table = marks
                size = table.shape[0]
            mine = PyLong_FromLongLong(number)
            for locks in (write, append):
                if locks is None:
                    continue
                for lock_hash in <tuple?>locks:
                    value = _next(_low(lock_hash))
                    table[value % size] = number
                    value = _next(value)
                    table[value % size] = number
                    value = _next(value)
                    table[value % size] = number
                    hashes.append(lock_hash)
                    ids.append(mine)
                    if taken.get(lock_hash) == mine:
                        del taken[lock_hash]
        number += 1


# ---- the client ------------------------------------------------------------------------------

cdef Fields _feed = Fields("req_id", "transaction_id")
cdef Fields _submit = Fields(
    "client_mark", "write_locks", "read_locks", "append_locks", "header", "data", "checksum", "names"
)


def judge_run(run, Py_ssize_t at, seen, dict sent, order, list committed):
    cdef long long mark, number
    cdef Py_ssize_t end
    if type(run) is not list or not waltz_long(seen, &mark) or at < 0:
        return REFERENCES["judge_run"](run, at, seen, sent, order, committed)
    end = PyList_GET_SIZE(run)
    while at < end:
        one = <object>PyList_GET_ITEM(run, at)
        if waltz_long(_feed.get(one, 1), &number) and number == mark + 1:
            attempt = sent.get(_feed.get(one, 0))
            if attempt is not None:
                if order[0] is not attempt:
                    break
                del sent[_feed.get(one, 0)]
                order.popleft()
                committed.append(((<tuple?>attempt)[2], _feed.get(one, 1)))
            mark += 1
        at += 1
    return at, mark


cdef object _append_frame(
    bytearray out, head, prefix, long long ordinal, long long mark, write, read, append, names, header, data, checksum
):
    # Appends one frame to `out`; its request id, or None and nothing was appended: the reference knows what to do.
    cdef Py_ssize_t size, begin, count, place, number, stop = 0, total = 0
    cdef int32_t head_number, sum_number, lock, of_name
    cdef unsigned char *p
    cdef const unsigned char *n
    cdef tuple locks, each
    if (
        not WALTZ_IS_BYTES(data)
        or not WALTZ_IS_BYTES(names)
        or not waltz_int32(header, &head_number)
        or not waltz_int32(checksum, &sum_number)
        or type(write) is not tuple
        or type(read) is not tuple
        or type(append) is not tuple
    ):
        return None
    each = (write, read, append)
    total = len(<tuple>write) + len(<tuple>read) + len(<tuple>append)
    size = 7 + 25 + 12 + 8 + 4 + PyBytes_GET_SIZE(data) + PyBytes_GET_SIZE(names) + 5 * total
    begin = PyByteArray_GET_SIZE(out)
    PyByteArray_Resize(out, begin + size)
    p = <unsigned char *>PyByteArray_AS_STRING(out) + begin
    memcpy(p, PyBytes_AS_STRING(head), 7)
    p[7] = 34
    memcpy(p + 8, PyBytes_AS_STRING(prefix), 12)
    put32(p + 20, <uint32_t>ordinal)
    put64(p + 24, mark)
    place = 32
    n = <const unsigned char *>PyBytes_AS_STRING(names)
    for number in range(3):
        locks = <tuple>each[number]
        count = len(locks)
        put32(p + place, count)
        place += 4
        for lock_hash in locks:
            if not waltz_int32(lock_hash, &lock):
                PyByteArray_Resize(out, begin)
                return None
            put32(p + place, lock)
            place += 5
            p[place - 1] = 0
            if PyBytes_GET_SIZE(names) == 0:
                continue
            if PyBytes_GET_SIZE(names) - stop < 4:
                PyByteArray_Resize(out, begin)
                return None
            of_name = <int32_t>get32(n + stop)
            if of_name == -1 and total > 1:
                stop += 4
                continue
            if of_name < 0 or PyBytes_GET_SIZE(names) - stop - 12 < of_name:
                PyByteArray_Resize(out, begin)
                return None
            p[place - 1] = 1
            memcpy(p + place, n + stop, of_name + 12)
            place += of_name + 12
            stop += of_name + 12
    if stop != PyBytes_GET_SIZE(names):
        PyByteArray_Resize(out, begin)
        return None
    put32(p + place, head_number)
    put32(p + place + 4, PyBytes_GET_SIZE(data))
    place += 8
    memcpy(p + place, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    place += PyBytes_GET_SIZE(data)
    put32(p + place, sum_number)
    place += 4
    put32(p + 3, place - 7)
    if place != size:
        PyByteArray_Resize(out, begin + place)
        p = <unsigned char *>PyByteArray_AS_STRING(out) + begin
    return PyBytes_FromStringAndSize(<const char *>p + 8, 16)


def encode_appends(bytearray out, head, submits, Py_ssize_t at, Py_ssize_t end, prefix, sequence, seen, bint names_told):
    cdef long long mark, first_mark, ordinal
    cdef object names, one, req_id
    reference = REFERENCES["encode_appends"]
    if (
        type(submits) is not list
        or not 0 <= at <= end <= PyList_GET_SIZE(submits)
        or not WALTZ_IS_BYTES(head)
        or PyBytes_GET_SIZE(head) != 7
        or not WALTZ_IS_BYTES(prefix)
        or PyBytes_GET_SIZE(prefix) != 12
        or not waltz_long(sequence, &ordinal)
        or not -0x80000000LL <= ordinal <= 0x7FFFFFFF
        or not waltz_long(seen, &first_mark)
    ):
        return reference(out, head, submits, at, end, prefix, sequence, seen, names_told)
    made = []
    while at < end:
        ordinal += 1
        if ordinal > 0x7FFFFFFF:
            ordinal -= 0x100000000LL
        one = <object>PyList_GET_ITEM(submits, at)
        mark = first_mark
        req_id = None
        if _submit.get(one, 0) is None or waltz_long(_submit.get(one, 0), &mark):
            names = _submit.get(one, 7) if names_told else _NONE
            req_id = _append_frame(
                out, head, prefix, ordinal, mark,
                _submit.get(one, 1), _submit.get(one, 2), _submit.get(one, 3),
                names, _submit.get(one, 4), _submit.get(one, 5), _submit.get(one, 6),
            )
        if req_id is None:
            made += reference(out, head, submits, at, at + 1, prefix, _wrapped(ordinal - 1), seen, names_told)
        else:
            made.append(req_id)
        at += 1
    return made


cdef object _wrapped(long long number):
    return number if number >= -0x80000000LL else number + 0x100000000LL


cdef Fields _locks = Fields("client_mark", "write", "read", "append", "names")
cdef Fields _plain = Fields("value", "codec", "header", "write", "read", "append", "result")


def take_plain(appends, at, cls, codec, size_max, room, list headers, list payloads, list checksums):
    taken = _taken(appends, at, None, cls, codec, size_max, room, headers, payloads, checksums)
    if taken is None:
        return REFERENCES["take_plain"](appends, at, cls, codec, size_max, room, headers, payloads, checksums)
    return taken


def take_alike(appends, at, like, cls, codec, size_max, room, list headers, list payloads, list checksums):
    taken = _taken(appends, at, like, cls, codec, size_max, room, headers, payloads, checksums)
    if taken is None:
        return REFERENCES["take_alike"](appends, at, like, cls, codec, size_max, room, headers, payloads, checksums)
    return taken


cdef object _taken(appends, at, like, cls, codec, size_max, room, list headers, list payloads, list checksums):
    cdef Py_ssize_t place, end, length
    cdef long long first, largest, wanted, size = 0
    cdef int32_t header
    cdef int number
    if (
        type(appends) is not list
        or not waltz_long(at, &first)
        or not waltz_long(size_max, &largest)
        or not waltz_long(room, &wanted)
        or not 0 <= first <= PyList_GET_SIZE(appends)
    ):
        return None
    place = first
    end = PyList_GET_SIZE(appends)
    of_like = (None, None, None) if like is None else (like.write, like.read, like.append)
    while place < end and size < wanted:
        one = <object>PyList_GET_ITEM(appends, place)
        if like is None and WALTZ_IS_BYTES(one):
            length = PyBytes_GET_SIZE(one)
            if length > largest:
                break
            headers.append(0)
            payloads.append(one)
            checksums.append(PyLong_FromLong(<int32_t><uint32_t>crc32(one)))
            size += length
            place += 1
            continue
        if type(one) is not cls or type(_plain.get(one, 1)) is not codec:
            break
        data = _plain.get(one, 0)
        if not WALTZ_IS_BYTES(data):
            break
        length = PyBytes_GET_SIZE(data)
        if length > largest or not waltz_int32(_plain.get(one, 2), &header) or _plain.get(one, 6) is not None:
            break
        for number in range(3, 6):
            locks = _plain.get(one, number)
            if like is not None:
                if locks is not (<tuple>of_like)[number - 3]:
                    break
            elif type(locks) is not tuple or len(<tuple>locks) != 0:
                break
        else:
            headers.append(_plain.get(one, 2))
            payloads.append(data)
            checksums.append(PyLong_FromLong(<int32_t><uint32_t>crc32(data)))
            size += length
            place += 1
            continue
        break
    return place, size


def encode_columns(bytearray out, head, columns, at, end, prefix, sequence, mark, names_told):
    cdef Py_ssize_t row, stop, begin, length
    cdef long long ordinal, known, own, first, last
    cdef int32_t header, checksum
    cdef unsigned char *p
    cdef list headers, payloads, checksums
    reference = REFERENCES["encode_columns"]
    if (
        not WALTZ_IS_BYTES(head)
        or PyBytes_GET_SIZE(head) != 7
        or not WALTZ_IS_BYTES(prefix)
        or PyBytes_GET_SIZE(prefix) != 12
        or not waltz_long(sequence, &ordinal)
        or not -0x80000000LL <= ordinal <= 0x7FFFFFFF
        or not waltz_long(mark, &known)
        or not waltz_long(at, &first)
        or not waltz_long(end, &last)
        or not 0 <= first <= last <= len(columns.payloads)
    ):
        return reference(out, head, columns, at, end, prefix, sequence, mark, names_told)
    headers, payloads, checksums = columns.headers, columns.payloads, columns.checksums
    locks = columns.locks
    made = []
    stop = last
    for row in range(first, stop):
        ordinal += 1
        if ordinal > 0x7FFFFFFF:
            ordinal -= 0x100000000LL
        data = <object>PyList_GET_ITEM(payloads, row)
        if (
            not WALTZ_IS_BYTES(data)
            or not waltz_int32(<object>PyList_GET_ITEM(headers, row), &header)
            or not waltz_int32(<object>PyList_GET_ITEM(checksums, row), &checksum)
        ):
            made += reference(out, head, columns, row, row + 1, prefix, _wrapped(ordinal - 1), mark, names_told)
            continue
        of_row = (<dict>locks).get(row) if locks else None
        if of_row is not None:
            own = known
            req_id = None
            if _locks.get(of_row, 0) is None or waltz_long(_locks.get(of_row, 0), &own):
                req_id = _append_frame(
                    out, head, prefix, ordinal, own,
                    _locks.get(of_row, 1), _locks.get(of_row, 2), _locks.get(of_row, 3),
                    _locks.get(of_row, 4) if names_told else _NONE,
                    <object>PyList_GET_ITEM(headers, row), data, <object>PyList_GET_ITEM(checksums, row),
                )
            if req_id is None:
                made += reference(out, head, columns, row, row + 1, prefix, _wrapped(ordinal - 1), mark, names_told)
            else:
                made.append(req_id)
            continue
        length = PyBytes_GET_SIZE(data)
        begin = PyByteArray_GET_SIZE(out)
        PyByteArray_Resize(out, begin + 56 + length)
        p = <unsigned char *>PyByteArray_AS_STRING(out) + begin
        memcpy(p, PyBytes_AS_STRING(head), 7)
        put32(p + 3, 49 + length)
        p[7] = 34
        memcpy(p + 8, PyBytes_AS_STRING(prefix), 12)
        put32(p + 20, <uint32_t>ordinal)
        put64(p + 24, known)
        put32(p + 32, 0)
        put32(p + 36, 0)
        put32(p + 40, 0)
        put32(p + 44, <uint32_t>header)
        put32(p + 48, length)
        memcpy(p + 52, PyBytes_AS_STRING(data), length)
        put32(p + 52 + length, <uint32_t>checksum)
        made.append(PyBytes_FromStringAndSize(<const char *>p + 8, 16))
    return made


def take_rows(list outcomes, at, first, end, ids, place):
    cdef long long begin, stop, token, start
    cdef Py_ssize_t number
    cdef long long here
    if (
        type(ids) is not list
        or not waltz_long(at, &here)
        or not waltz_long(first, &begin)
        or not waltz_long(end, &stop)
        or not waltz_long(place, &start)
        or here < 0
        or start < 0
        or stop - begin > PyList_GET_SIZE(ids) - start
    ):
        return REFERENCES["take_rows"](outcomes, at, first, end, ids, place)
    number = here
    while number < PyList_GET_SIZE(outcomes):
        pair = <tuple?><object>PyList_GET_ITEM(outcomes, number)
        if not waltz_long((<tuple>pair)[0], &token) or not begin <= token < stop:
            break
        (<list>ids)[start + token - begin] = (<tuple>pair)[1]
        number += 1
    return number
