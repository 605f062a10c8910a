/* The hot path in C: writes slots with the layouts of capture/common/layouts.py by the protocol of
 * capture/lanes/slots.py.
 *
 * It is optional. Wheels contain it compiled (hatch_build.py); `python -m ranklake.capture.build` compiles it in place.
 * capture/common/native.py loads it if it was built from this version of the file. Each object here has a Python
 * function for all special cases (a full or retired file, a value that is not a number, an unexpected argument), so
 * that these are handled and counted in a single place.
 *
 * The code relies on the GIL; capture/common/native.py does not load it without one.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <stdint.h>
#include <string.h>
#include <time.h>

#ifndef SOURCE_SHA256
#error "compile with -DSOURCE_SHA256=\"...\""
#endif

#define MARK UINT32_C(0x6C6B6E72)
#define ABSENT INT64_MIN
#define PHASES 7
#define STEP_FLOATS 3
#define ROW_WIDTH 16
#define MOST_VALUES 64
#define PLANS_A_WIDTH 4

typedef struct {
    int64_t time_ns, step;
    double value;
    uint32_t series, mark;
} ScalarSlot;

typedef struct {
    int64_t time_ns, step;
    double values[ROW_WIDTH];
    uint32_t schema, mark;
} RowSlot;

typedef struct {
    int64_t start_ns, duration_ns, step, span_id, parent_id, bytes;
    int32_t microbatch;
    uint32_t kind, name, mark;
} SpanSlot;

typedef struct {
    int64_t start_ns, duration_ns, step, spent[PHASES], tokens, samples;
    double floats[STEP_FLOATS];
    int64_t memory_allocated_bytes, memory_reserved_bytes;
    uint32_t present, mark;
} StepSlot;

_Static_assert(sizeof(ScalarSlot) == 32, "the layout of capture/common/layouts.py");
_Static_assert(sizeof(RowSlot) == 152, "the layout of capture/common/layouts.py");
_Static_assert(sizeof(SpanSlot) == 64, "the layout of capture/common/layouts.py");
_Static_assert(sizeof(StepSlot) == 144, "the layout of capture/common/layouts.py");

static PyObject *s_pair, *s_current, *s_at, *s_step;

static inline int64_t now_ns(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (int64_t)moment.tv_sec * 1000000000 + moment.tv_nsec;
}

/* Take a slot and a buffer on its file. Returns 0, without an exception, if no slot is available. */
static int take_slot(PyObject *lane, Py_ssize_t size, Py_buffer *held, char **slot)
{
    PyObject *pair = PyObject_GetAttr(lane, s_pair);
    if (pair == NULL || !PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2)
        goto no;
    PyObject *number = PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 1));
    if (number == NULL)
        goto no;
    Py_ssize_t offset = PyLong_AsSsize_t(number);
    Py_DECREF(number);
    if (PyObject_GetBuffer(PyTuple_GET_ITEM(pair, 0), held, PyBUF_WRITABLE) < 0)
        goto no; /* released: the file was retired */
    Py_DECREF(pair);
    if (offset < 0 || offset + size > held->len) {
        PyBuffer_Release(held);
        PyErr_Clear();
        return 0;
    }
    *slot = (char *)held->buf + offset;
    return 1;
no:
    Py_XDECREF(pair);
    PyErr_Clear();
    return 0;
}

/* Write a slot. The commit word is its last field, and is stored after all others. */
static inline void commit(char *slot, const void *filled, Py_ssize_t size, Py_buffer *held)
{
    memcpy(slot, filled, size - sizeof(uint32_t));
    __atomic_signal_fence(__ATOMIC_RELEASE);
    __atomic_store_n((uint32_t *)(slot + size - sizeof(uint32_t)), MARK, __ATOMIC_RELEASE);
    PyBuffer_Release(held);
}

/* Convert a plain number to a double. Returns 0, without an exception, if the conversion could run foreign code. */
static inline int plain_double(PyObject *value, double *found)
{
    if (PyFloat_Check(value)) {
        *found = PyFloat_AS_DOUBLE(value);
        return 1;
    }
    if (PyLong_CheckExact(value) || PyBool_Check(value)) {
        *found = PyLong_AsDouble(value);
        if (*found != -1.0 || !PyErr_Occurred())
            return 1;
        PyErr_Clear();
    }
    return 0;
}

static inline int plain_step(PyObject *step, int64_t *found)
{
    if (step == Py_None) {
        *found = ABSENT;
        return 1;
    }
    if (!PyLong_CheckExact(step))
        return 0;
    int overflow;
    *found = PyLong_AsLongLongAndOverflow(step, &overflow);
    return !overflow;
}

/* ── Adder: writes the values of a metric's handle ── */

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *lane, *slow;
    uint32_t series;
} Adder;

static PyObject *adder_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Adder *adder = (Adder *)self;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    ScalarSlot filled = {.step = ABSENT, .series = adder->series};
    Py_buffer held;
    char *slot;
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) {
        if (count != 1 || PyTuple_GET_SIZE(kwnames) != 1 || PyTuple_GET_ITEM(kwnames, 0) != s_step)
            goto slow;
        count = 2; /* keyword values follow the positional ones */
    }
    if (count < 1 || count > 2 || !plain_double(args[0], &filled.value))
        goto slow;
    if (count == 2 && !plain_step(args[1], &filled.step))
        goto slow;
    if (!take_slot(adder->lane, sizeof filled, &held, &slot))
        goto slow;
    filled.time_ns = now_ns();
    commit(slot, &filled, sizeof filled, &held);
    Py_RETURN_NONE;
slow:
    return PyObject_Vectorcall(adder->slow, args, nargsf, kwnames);
}

static PyObject *adder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *lane, *slow;
    unsigned int series;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OIO:Adder", &lane, &series, &slow))
        return NULL;
    Adder *self = (Adder *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = adder_call;
    self->lane = Py_NewRef(lane);
    self->slow = Py_NewRef(slow);
    self->series = series;
    return (PyObject *)self;
}

static int adder_traverse(Adder *self, visitproc visit, void *arg)
{
    Py_VISIT(self->lane);
    Py_VISIT(self->slow);
    return 0;
}

static int adder_clear(Adder *self)
{
    Py_CLEAR(self->lane);
    Py_CLEAR(self->slow);
    return 0;
}

static void adder_dealloc(Adder *self)
{
    PyObject_GC_UnTrack(self);
    adder_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject AdderType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ranklake.capture.common._native.Adder",
    .tp_doc = "Adder(lane, series, slow): records (value, step=None) in one slot of `scalars`.",
    .tp_basicsize = sizeof(Adder),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Adder, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = adder_new,
    .tp_traverse = (traverseproc)adder_traverse,
    .tp_clear = (inquiry)adder_clear,
    .tp_dealloc = (destructor)adder_dealloc,
};

/* ── Logger: writes the mappings of `run.log` ── */

typedef struct {
    PyObject *names; /* tuple; NULL if the entry is free */
    PyObject *scalars, *rows;
    Py_ssize_t parts;
    uint32_t numbers[MOST_VALUES / ROW_WIDTH];
} Plan;

typedef struct {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *progress, *slow; /* progress: capture/steps/progress.py */
    unsigned char next[MOST_VALUES + 1];
    Plan plans[MOST_VALUES + 1][PLANS_A_WIDTH];
} Logger;

static void plan_clear(Plan *plan)
{
    Py_CLEAR(plan->names);
    Py_CLEAR(plan->scalars);
    Py_CLEAR(plan->rows);
}

/* Read the values of a dict of the plan's length in the order of its names. Returns 0, without an exception, if it has
 * other names or values that are not plain numbers. */
static int pick_dict(const Plan *plan, PyObject *dict, Py_ssize_t count, double *values)
{
    Py_ssize_t at = 0, place = 0;
    PyObject *key, *value;
    int same = 1;
    while (PyDict_Next(dict, &place, &key, &value)) {
        if (!PyUnicode_CheckExact(key)) /* a comparison could run foreign code, which may free the plan */
            return 0;
        same = same && key == PyTuple_GET_ITEM(plan->names, at);
        if (!same)
            continue;
        if (!plain_double(value, &values[at++]))
            return 0;
    }
    if (same)
        return 1;
    for (at = 0; at < count; at++) { /* in another order, or names that are equal but not identical */
        PyObject *name = PyTuple_GET_ITEM(plan->names, at);
        value = PyDict_GetItemWithError(dict, name);
        if (value == NULL || !plain_double(value, &values[at])) {
            PyErr_Clear();
            return 0;
        }
    }
    return 1;
}

static int pick_keywords(const Plan *plan, PyObject *const *args, PyObject *kwnames, Py_ssize_t but, double *values)
{
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        if (i == but)
            continue;
        if (PyTuple_GET_ITEM(kwnames, i) != PyTuple_GET_ITEM(plan->names, at) || !plain_double(args[i], &values[at]))
            return 0;
        at++;
    }
    return 1;
}

/* Write one part of a mapping; 0 if its file is full or was retired. */
static int write_part(const Plan *plan, Py_ssize_t part, Py_ssize_t count, int64_t moment, int64_t step,
                      const double *values)
{
    Py_buffer held;
    char *slot;
    Py_ssize_t width = count - part * ROW_WIDTH;
    values += part * ROW_WIDTH;
    if (width == 1) {
        ScalarSlot filled = {moment, step, values[0], plan->numbers[part], 0};
        if (!take_slot(plan->scalars, sizeof filled, &held, &slot))
            return 0;
        commit(slot, &filled, sizeof filled, &held);
        return 1;
    }
    RowSlot filled;
    filled.time_ns = moment;
    filled.step = step;
    memcpy(filled.values, values, sizeof(double) * (width < ROW_WIDTH ? width : ROW_WIDTH));
    if (width < ROW_WIDTH)
        memset(filled.values + width, 0, sizeof(double) * (ROW_WIDTH - width));
    filled.schema = plan->numbers[part];
    if (!take_slot(plan->rows, sizeof filled, &held, &slot))
        return 0;
    commit(slot, &filled, sizeof filled, &held);
    return 1;
}

/* Pass a part that was not written to Python, as a call with only the names of that part. */
static int rest_slowly(const Logger *self, const Plan *plan, Py_ssize_t part, Py_ssize_t count, int64_t step,
                       const double *values)
{
    Py_ssize_t end = (part + 1) * ROW_WIDTH < count ? (part + 1) * ROW_WIDTH : count;
    PyObject *mapping = PyDict_New();
    if (mapping == NULL)
        return -1;
    for (Py_ssize_t at = part * ROW_WIDTH; at < end; at++) {
        PyObject *value = PyFloat_FromDouble(values[at]);
        if (value == NULL || PyDict_SetItem(mapping, PyTuple_GET_ITEM(plan->names, at), value) < 0) {
            Py_XDECREF(value);
            Py_DECREF(mapping);
            return -1;
        }
        Py_DECREF(value);
    }
    PyObject *number = step == ABSENT ? Py_NewRef(Py_None) : PyLong_FromLongLong(step);
    PyObject *args[] = {mapping, number};
    PyObject *names = number == NULL ? NULL : PyTuple_Pack(1, s_step);
    PyObject *done = names == NULL ? NULL : PyObject_Vectorcall(self->slow, args, 1, names);
    Py_XDECREF(names);
    Py_XDECREF(number);
    Py_DECREF(mapping);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int step_of(const Logger *self, PyObject *given, int64_t *step)
{
    if (given != NULL && given != Py_None)
        return plain_step(given, step) && *step != ABSENT;
    PyObject *at = PyObject_GetAttr(self->progress, s_at);
    int good = at != NULL && plain_step(at, step);
    Py_XDECREF(at);
    PyErr_Clear();
    return good;
}

static PyObject *logger_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Logger *logger = (Logger *)self;
    Py_ssize_t given = PyVectorcall_NARGS(nargsf), named = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    Py_ssize_t step_at = -1, count;
    int64_t step, moment = now_ns();
    double values[MOST_VALUES];
    const Plan *plan = NULL;
    for (Py_ssize_t i = 0; i < named; i++)
        if (PyTuple_GET_ITEM(kwnames, i) == s_step)
            step_at = i;
    count = named - (step_at >= 0);
    int by_mapping = given == 1 && count == 0 && PyDict_CheckExact(args[0]);
    if (by_mapping)
        count = PyDict_GET_SIZE(args[0]);
    else if (given != 0)
        goto slow;
    if (count < 1 || count > MOST_VALUES || !step_of(logger, step_at < 0 ? NULL : args[given + step_at], &step))
        goto slow;
    for (int i = 0; i < PLANS_A_WIDTH && plan == NULL; i++) {
        const Plan *tried = &logger->plans[count][i];
        if (tried->names == NULL)
            break;
        if (by_mapping ? pick_dict(tried, args[0], count, values)
                       : pick_keywords(tried, args, kwnames, step_at, values))
            plan = tried;
    }
    if (plan == NULL)
        goto slow;
    /* Python may replace the plan during the calls below, so work on a copy. */
    Plan kept = *plan;
    Py_INCREF(kept.names);
    Py_INCREF(kept.scalars);
    Py_INCREF(kept.rows);
    int failed = 0;
    for (Py_ssize_t part = 0; part < kept.parts && !failed; part++)
        if (!write_part(&kept, part, count, moment, step, values))
            failed = rest_slowly(logger, &kept, part, count, step, values) < 0;
    plan_clear(&kept);
    if (failed)
        return NULL;
    Py_RETURN_NONE;
slow:
    return PyObject_Vectorcall(logger->slow, args, nargsf, kwnames);
}

static PyObject *logger_learn(Logger *self, PyObject *args)
{
    PyObject *names, *scalars, *rows, *numbers;
    if (!PyArg_ParseTuple(args, "O!OOO!:learn", &PyTuple_Type, &names, &scalars, &rows, &PyTuple_Type, &numbers))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(names), parts = PyTuple_GET_SIZE(numbers);
    if (count < 1 || count > MOST_VALUES || parts != (count + ROW_WIDTH - 1) / ROW_WIDTH) {
        PyErr_SetString(PyExc_ValueError, "no plan for so many values");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(names, i))) {
            PyErr_SetString(PyExc_TypeError, "names must be of type str");
            return NULL;
        }
    Plan fresh = {.parts = parts};
    for (Py_ssize_t i = 0; i < parts; i++) {
        fresh.numbers[i] = (uint32_t)PyLong_AsUnsignedLongMask(PyTuple_GET_ITEM(numbers, i));
        if (PyErr_Occurred())
            return NULL;
    }
    fresh.names = Py_NewRef(names);
    fresh.scalars = Py_NewRef(scalars);
    fresh.rows = Py_NewRef(rows);
    Plan *place = &self->plans[count][self->next[count]];
    self->next[count] = (self->next[count] + 1) % PLANS_A_WIDTH;
    Plan old = *place;
    *place = fresh;
    plan_clear(&old);
    Py_RETURN_NONE;
}

static PyObject *logger_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *progress, *slow;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OO:Logger", &progress, &slow))
        return NULL;
    Logger *self = (Logger *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->call = logger_call;
    self->progress = Py_NewRef(progress);
    self->slow = Py_NewRef(slow);
    return (PyObject *)self;
}

static int logger_traverse(Logger *self, visitproc visit, void *arg)
{
    Py_VISIT(self->progress);
    Py_VISIT(self->slow);
    for (int count = 0; count <= MOST_VALUES; count++)
        for (int i = 0; i < PLANS_A_WIDTH; i++) {
            Py_VISIT(self->plans[count][i].names);
            Py_VISIT(self->plans[count][i].scalars);
            Py_VISIT(self->plans[count][i].rows);
        }
    return 0;
}

static int logger_clear(Logger *self)
{
    Py_CLEAR(self->progress);
    Py_CLEAR(self->slow);
    for (int count = 0; count <= MOST_VALUES; count++)
        for (int i = 0; i < PLANS_A_WIDTH; i++)
            plan_clear(&self->plans[count][i]);
    return 0;
}

static void logger_dealloc(Logger *self)
{
    PyObject_GC_UnTrack(self);
    logger_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef logger_methods[] = {
    {"learn", (PyCFunction)logger_learn, METH_VARARGS,
     "learn(names, scalars, rows, numbers): write mappings with these names so; forgets the oldest of that width."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject LoggerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ranklake.capture.common._native.Logger",
    .tp_doc = "Logger(progress, slow): `run.log` for mappings that were learnt; all others go to `slow`.",
    .tp_basicsize = sizeof(Logger),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(Logger, call),
    .tp_call = PyVectorcall_Call,
    .tp_new = logger_new,
    .tp_traverse = (traverseproc)logger_traverse,
    .tp_clear = (inquiry)logger_clear,
    .tp_dealloc = (destructor)logger_dealloc,
    .tp_methods = logger_methods,
};

/* ── Frame and Stack: see their documentation in capture/steps/progress.py ── */

typedef struct Frame {
    PyObject_HEAD
    PyObject *parent, *owner, *step; /* NULL means None */
    int64_t start, inner, span_id, number; /* start: ABSENT means None */
    int64_t spent[PHASES];
    char adds;
} Frame;

static PyTypeObject FrameType, StackType;

static int frame_traverse(Frame *self, visitproc visit, void *arg)
{
    Py_VISIT(self->parent);
    Py_VISIT(self->owner);
    Py_VISIT(self->step);
    return 0;
}

static int frame_clear(Frame *self)
{
    Py_CLEAR(self->parent);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->step);
    return 0;
}

static void frame_dealloc(Frame *self)
{
    PyObject_GC_UnTrack(self);
    frame_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *frame_get_object(Frame *self, void *offset)
{
    PyObject *found = *(PyObject **)((char *)self + (size_t)offset);
    return Py_NewRef(found == NULL ? Py_None : found);
}

/* Not a T_OBJECT member, which would store None itself: this code expects a frame or NULL. */
static int frame_set_object(Frame *self, PyObject *value, void *offset)
{
    if (value == Py_None)
        value = NULL;
    if (value != NULL && (size_t)offset != offsetof(Frame, owner) && !PyObject_TypeCheck(value, &FrameType)) {
        PyErr_SetString(PyExc_TypeError, "not a Frame");
        return -1;
    }
    PyObject **place = (PyObject **)((char *)self + (size_t)offset);
    Py_XINCREF(value);
    Py_XSETREF(*place, value);
    return 0;
}

static PyObject *frame_get_start(Frame *self, void *unused)
{
    (void)unused;
    if (self->start == ABSENT)
        Py_RETURN_NONE;
    return PyLong_FromLongLong(self->start);
}

static int frame_set_start(Frame *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value == NULL || value == Py_None) {
        self->start = ABSENT;
        return 0;
    }
    self->start = PyLong_AsLongLong(value);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *frame_get_spent(Frame *self, void *unused)
{
    (void)unused;
    PyObject *list = PyList_New(PHASES);
    for (int i = 0; list != NULL && i < PHASES; i++) {
        PyObject *one = PyLong_FromLongLong(self->spent[i]);
        if (one == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, one);
    }
    return list;
}

static int frame_set_spent(Frame *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value == NULL || !PyList_CheckExact(value) || PyList_GET_SIZE(value) != PHASES) {
        PyErr_SetString(PyExc_TypeError, "not a list with a number for each phase");
        return -1;
    }
    for (int i = 0; i < PHASES; i++) {
        self->spent[i] = PyLong_AsLongLong(PyList_GET_ITEM(value, i));
        if (PyErr_Occurred())
            return -1;
    }
    return 0;
}

static PyObject *frame_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    Frame *self = (Frame *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->start = self->number = ABSENT;
    for (int i = 0; i < PHASES; i++)
        self->spent[i] = ABSENT;
    return (PyObject *)self;
}

static PyMemberDef frame_members[] = {
    {"inner", T_LONGLONG, offsetof(Frame, inner), 0, NULL},
    {"span_id", T_LONGLONG, offsetof(Frame, span_id), 0, NULL},
    {"number", T_LONGLONG, offsetof(Frame, number), 0, NULL},
    {"adds", T_BOOL, offsetof(Frame, adds), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef frame_getset[] = {
    {"parent", (getter)frame_get_object, (setter)frame_set_object, NULL, (void *)offsetof(Frame, parent)},
    {"owner", (getter)frame_get_object, (setter)frame_set_object, NULL, (void *)offsetof(Frame, owner)},
    {"step", (getter)frame_get_object, (setter)frame_set_object, NULL, (void *)offsetof(Frame, step)},
    {"start", (getter)frame_get_start, (setter)frame_set_start, NULL, NULL},
    {"spent", (getter)frame_get_spent, (setter)frame_set_spent, "A copy.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject FrameType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ranklake.capture.common._native.Frame",
    .tp_doc = "See ranklake.capture.steps.progress.Frame.",
    .tp_basicsize = sizeof(Frame),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = frame_new,
    .tp_traverse = (traverseproc)frame_traverse,
    .tp_clear = (inquiry)frame_clear,
    .tp_dealloc = (destructor)frame_dealloc,
    .tp_members = frame_members,
    .tp_getset = frame_getset,
};

typedef struct {
    PyObject_HEAD
    uint64_t thread;  /* thread whose top is stored here; ids of thread states are never reused */
    PyObject *top;    /* NULL means None */
} Stack;

/* The calling thread's top, as a borrowed reference; NULL for none. All threads except the first store it in their
 * thread state's dict, so that it is freed when the thread ends. */
static Frame *stack_top(Stack *self)
{
    if (PyThreadState_GetID(PyThreadState_Get()) == self->thread)
        return (Frame *)self->top;
    PyObject *dict = PyThreadState_GetDict();
    PyObject *found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, (PyObject *)self);
    PyErr_Clear();
    return (Frame *)found;
}

static int stack_set_top(Stack *self, PyObject *frame)
{
    if (PyThreadState_GetID(PyThreadState_Get()) == self->thread) {
        Py_XINCREF(frame);
        Py_XSETREF(self->top, frame);
        return 0;
    }
    PyObject *dict = PyThreadState_GetDict();
    if (dict == NULL)
        return -1;
    if (frame != NULL)
        return PyDict_SetItem(dict, (PyObject *)self, frame);
    if (PyDict_DelItem(dict, (PyObject *)self) < 0)
        PyErr_Clear();
    return 0;
}

/* See `Stack.leave` in capture/steps/progress.py. Returns a new reference, or NULL with no exception set. */
static Frame *stack_leave(Stack *self, PyObject *owner)
{
    Frame *frame = stack_top(self);
    if (frame == NULL)
        return NULL;
    if (frame->owner == owner) {
        Py_INCREF(frame);
        if (stack_set_top(self, frame->parent) < 0)
            PyErr_Clear();
        return frame;
    }
    for (Frame *outer; (outer = (Frame *)frame->parent) != NULL; frame = outer)
        if (outer->owner == owner) {
            Py_INCREF(outer);
            Py_XINCREF(outer->parent);
            Py_XSETREF(frame->parent, outer->parent);
            return outer;
        }
    return NULL;
}

static PyObject *stack_get_top(Stack *self, void *unused)
{
    (void)unused;
    Frame *top = stack_top(self);
    return Py_NewRef(top == NULL ? Py_None : (PyObject *)top);
}

static int stack_put_top(Stack *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value != NULL && value != Py_None && !PyObject_TypeCheck(value, &FrameType)) {
        PyErr_SetString(PyExc_TypeError, "not a Frame");
        return -1;
    }
    return stack_set_top(self, value == Py_None ? NULL : value);
}

static PyObject *stack_leave_method(Stack *self, PyObject *owner)
{
    Frame *frame = stack_leave(self, owner);
    if (frame == NULL)
        Py_RETURN_NONE;
    return (PyObject *)frame;
}

static PyObject *stack_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    Stack *self = (Stack *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->thread = PyThreadState_GetID(PyThreadState_Get());
    return (PyObject *)self;
}

static int stack_traverse(Stack *self, visitproc visit, void *arg)
{
    Py_VISIT(self->top);
    return 0;
}

static int stack_clear(Stack *self)
{
    Py_CLEAR(self->top);
    return 0;
}

static void stack_dealloc(Stack *self)
{
    PyObject_GC_UnTrack(self);
    stack_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef stack_methods[] = {
    {"leave", (PyCFunction)stack_leave_method, METH_O, "See ranklake.capture.steps.progress.Stack.leave."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef stack_getset[] = {
    {"top", (getter)stack_get_top, (setter)stack_put_top, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject StackType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ranklake.capture.common._native.Stack",
    .tp_doc = "See ranklake.capture.steps.progress.Stack.",
    .tp_basicsize = sizeof(Stack),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = stack_new,
    .tp_traverse = (traverseproc)stack_traverse,
    .tp_clear = (inquiry)stack_clear,
    .tp_dealloc = (destructor)stack_dealloc,
    .tp_methods = stack_methods,
    .tp_getset = stack_getset,
};

/* ── Phase: see capture/steps/phase.py ── */

#define KEPT 8

typedef struct {
    PyObject_HEAD
    PyObject *progress, *refuse, *lane, *slow, *next_id;
    Stack *stack;
    int64_t size;
    int32_t microbatch;
    uint32_t name;
    int column, done_count;
    Frame *done[KEPT]; /* frames for reuse */
} Phase;

static PyObject *phase_enter(PyObject *object, PyObject *unused)
{
    Phase *self = (Phase *)object;
    (void)unused;
    Frame *frame;
    if (self->done_count > 0)
        frame = self->done[--self->done_count];
    else {
        frame = (Frame *)frame_new(&FrameType, NULL, NULL);
        if (frame == NULL)
            return NULL;
        frame->owner = Py_NewRef(object);
    }
    PyObject *id = PyObject_CallNoArgs(self->next_id);
    if (id == NULL)
        goto no;
    frame->span_id = PyLong_AsLongLong(id);
    Py_DECREF(id);
    Frame *parent = stack_top(self->stack);
    if (parent == NULL) {
        /* Possibly another thread than the step's; see capture/steps/phase.py. */
        PyObject *step = PyObject_GetAttr(self->progress, s_current);
        if (step == NULL)
            goto no;
        frame->adds = 0;
        if (PyObject_TypeCheck(step, &FrameType))
            Py_XSETREF(frame->step, step);
        else
            Py_DECREF(step);
    } else {
        frame->parent = Py_NewRef((PyObject *)parent);
        frame->step = Py_XNewRef(parent->step);
        frame->adds = parent->adds;
    }
    frame->inner = 0;
    if (stack_set_top(self->stack, (PyObject *)frame) < 0)
        goto no;
    Py_DECREF(frame); /* the stack has a reference */
    frame->start = now_ns();
    return Py_NewRef(object);
no:
    Py_DECREF(frame);
    return NULL;
}

static PyObject *refuse(Phase *self, const char *reason)
{
    PyObject *done = PyObject_CallFunction(self->refuse, "ss", "spans", reason);
    Py_XDECREF(done);
    if (done == NULL)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *phase_exit(PyObject *object, PyObject *const *args, Py_ssize_t count)
{
    int64_t end = now_ns();
    Phase *self = (Phase *)object;
    (void)args, (void)count;
    Frame *frame = stack_leave(self->stack, object);
    if (frame == NULL)
        return refuse(self, "ended and never begun");
    if (frame->start == ABSENT) {
        Py_DECREF(frame);
        return refuse(self, "begun before a fork");
    }
    Frame *parent = (Frame *)frame->parent, *step = (Frame *)frame->step;
    SpanSlot filled = {
        .start_ns = frame->start,
        .duration_ns = end - frame->start,
        .step = ABSENT,
        .span_id = frame->span_id,
        .parent_id = ABSENT,
        .bytes = self->size,
        .microbatch = self->microbatch,
        .name = self->name,
    };
    if (parent != NULL) {
        parent->inner += filled.duration_ns;
        filled.parent_id = parent->span_id;
    }
    if (step != NULL) {
        filled.step = step->number;
        if (parent == NULL)
            filled.parent_id = step->span_id;
        else if (self->column >= 0 && frame->adds) {
            int64_t *spent = &step->spent[self->column];
            *spent = filled.duration_ns - frame->inner + (*spent == ABSENT ? 0 : *spent);
        }
    }
    PyObject *done = NULL;
    Py_buffer held;
    char *slot;
    if (take_slot(self->lane, sizeof filled, &held, &slot)) {
        commit(slot, &filled, sizeof filled, &held);
        done = Py_NewRef(Py_None);
    } else
        done = PyObject_CallFunction(self->slow, "LLLLLLiiI", (long long)filled.start_ns,
                                     (long long)filled.duration_ns, (long long)filled.step,
                                     (long long)filled.span_id, (long long)filled.parent_id, (long long)filled.bytes,
                                     (int)filled.microbatch, 0, (unsigned int)filled.name);
    Py_CLEAR(frame->parent);
    Py_CLEAR(frame->step);
    if (self->done_count < KEPT)
        self->done[self->done_count++] = frame;
    else
        Py_DECREF(frame);
    if (done == NULL)
        return NULL;
    Py_DECREF(done);
    Py_RETURN_NONE;
}

static PyObject *phase_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *progress, *refuse, *stack, *lane, *slow, *next_id;
    unsigned int name;
    int column, microbatch;
    long long size;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOO!OOOIiLi:Phase", &progress, &refuse, &StackType, &stack, &lane, &slow, &next_id, &name, &column,
                          &size, &microbatch))
        return NULL;
    if (column >= PHASES) {
        PyErr_SetString(PyExc_ValueError, "no such column");
        return NULL;
    }
    Phase *self = (Phase *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->progress = Py_NewRef(progress);
    self->refuse = Py_NewRef(refuse);
    self->stack = (Stack *)Py_NewRef(stack);
    self->lane = Py_NewRef(lane);
    self->slow = Py_NewRef(slow);
    self->next_id = Py_NewRef(next_id);
    self->name = name;
    self->column = column;
    self->size = size;
    self->microbatch = microbatch;
    return (PyObject *)self;
}

static int phase_traverse(Phase *self, visitproc visit, void *arg)
{
    Py_VISIT(self->progress);
    Py_VISIT(self->refuse);
    Py_VISIT(self->stack);
    Py_VISIT(self->lane);
    Py_VISIT(self->slow);
    Py_VISIT(self->next_id);
    for (int i = 0; i < self->done_count; i++)
        Py_VISIT(self->done[i]);
    return 0;
}

static int phase_clear(Phase *self)
{
    Py_CLEAR(self->progress);
    Py_CLEAR(self->refuse);
    Py_CLEAR(self->stack);
    Py_CLEAR(self->lane);
    Py_CLEAR(self->slow);
    Py_CLEAR(self->next_id);
    while (self->done_count > 0)
        Py_DECREF(self->done[--self->done_count]);
    return 0;
}

static void phase_dealloc(Phase *self)
{
    PyObject_GC_UnTrack(self);
    phase_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef phase_methods[] = {
    {"__enter__", phase_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))phase_exit, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject PhaseType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "ranklake.capture.common._native.Phase",
    .tp_doc = "See ranklake.capture.steps.phase.Phase.",
    .tp_basicsize = sizeof(Phase),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = phase_new,
    .tp_traverse = (traverseproc)phase_traverse,
    .tp_clear = (inquiry)phase_clear,
    .tp_dealloc = (destructor)phase_dealloc,
    .tp_methods = phase_methods,
};

/* ── put_step: the rows of a step that has ended, see capture/steps/step.py ── */

static inline int plain_integer(PyObject *value, int64_t *found)
{
    return value != Py_None && plain_step(value, found);
}

/* Returns the place of the step's row, as `Lane.put` does; None if no row was written, False if only the span was. */
static PyObject *put_step(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    int64_t begun, duration, name, present;
    Py_buffer held;
    char *slot;
    if (count != 11 || !PyObject_TypeCheck(args[0], &FrameType) || !PyTuple_CheckExact(args[9]) ||
        PyTuple_GET_SIZE(args[9]) != STEP_FLOATS) {
        PyErr_SetString(PyExc_TypeError, "put_step(frame, spans, steps, name, begun, span, step, tokens, samples, floats, present)");
        return NULL;
    }
    Frame *frame = (Frame *)args[0], *parent = (Frame *)frame->parent;
    StepSlot row = {
        .step = frame->number,
        .memory_allocated_bytes = ABSENT,
        .memory_reserved_bytes = ABSENT,
    };
    if (!plain_integer(args[3], &name) || !plain_integer(args[4], &begun) || !plain_integer(args[5], &duration) ||
        !plain_integer(args[6], &row.duration_ns) || !plain_integer(args[7], &row.tokens) ||
        !plain_integer(args[8], &row.samples) || !plain_integer(args[10], &present))
        Py_RETURN_NONE;
    for (int i = 0; i < STEP_FLOATS; i++)
        if (!plain_double(PyTuple_GET_ITEM(args[9], i), &row.floats[i]))
            Py_RETURN_NONE;
    SpanSlot span = {
        .start_ns = begun,
        .duration_ns = duration,
        .step = frame->number,
        .span_id = frame->span_id,
        .parent_id = parent == NULL ? ABSENT : parent->span_id,
        .bytes = ABSENT,
        .microbatch = -1,
        .name = (uint32_t)name,
    };
    if (!take_slot(args[1], sizeof span, &held, &slot))
        Py_RETURN_NONE;
    commit(slot, &span, sizeof span, &held);
    row.start_ns = begun;
    memcpy(row.spent, frame->spent, sizeof row.spent);
    row.present = (uint32_t)present;
    if (!take_slot(args[2], sizeof row, &held, &slot))
        Py_RETURN_FALSE;
    PyObject *place = Py_BuildValue("On", held.obj, (Py_ssize_t)(slot - (char *)held.buf));
    commit(slot, &row, sizeof row, &held);
    return place;
}

static PyMethodDef native_methods[] = {
    {"put_step", (PyCFunction)(void (*)(void))put_step, METH_FASTCALL, "See ranklake.capture.steps.step.Step."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef native = {
    PyModuleDef_HEAD_INIT,
    .m_name = "ranklake.capture.common._native",
    .m_doc = "The hot path in C; see capture/common/native.c.",
    .m_size = -1,
    .m_methods = native_methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    s_pair = PyUnicode_InternFromString("pair");
    s_current = PyUnicode_InternFromString("current");
    s_at = PyUnicode_InternFromString("at");
    s_step = PyUnicode_InternFromString("step");
    if (!s_pair || !s_current || !s_at || !s_step)
        return NULL;
    PyObject *module = PyModule_Create(&native);
    if (module == NULL || PyModule_AddStringConstant(module, "SOURCE", SOURCE_SHA256) < 0 ||
        PyModule_AddType(module, &AdderType) < 0 || PyModule_AddType(module, &LoggerType) < 0 ||
        PyModule_AddType(module, &FrameType) < 0 || PyModule_AddType(module, &StackType) < 0 ||
        PyModule_AddType(module, &PhaseType) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
