// Calls: how Python calls a kernel with no more than addresses, in a fourth of the time that ctypes takes.
//
// What is used of Python is declared here, as its stable ABI has it: no headers of Python are needed.

typedef struct _object PyObject;
typedef __SIZE_TYPE__ word;

extern "C" {
void* PyLong_AsVoidPtr(PyObject*);
char* PyBytes_AsString(PyObject*);
PyObject* PyErr_Occurred();
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
void Py_IncRef(PyObject*);
extern PyObject _Py_NoneStruct;

// The bytes that are bound: the kernel, how many fields follow the addresses, and these fields.
struct Bound {
    void (*kernel)(const void*);
    word count;
    word fields[1];
};

static PyObject* call(PyObject* self, PyObject* const* given, word count) {
    const Bound* const bound = reinterpret_cast<const Bound*>(PyBytes_AsString(self));
    word* const record = static_cast<word*>(__builtin_alloca((count + bound->count) * sizeof(word)));
    for (word one = 0; one < count; ++one) record[one] = reinterpret_cast<word>(PyLong_AsVoidPtr(given[one]));
    if (PyErr_Occurred()) return nullptr;
    for (word one = 0; one < bound->count; ++one) record[count + one] = bound->fields[one];
    void* const thread = PyEval_SaveThread();  // other threads of Python run meanwhile
    bound->kernel(record);
    PyEval_RestoreThread(thread);
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

struct Method {
    const char* name;
    PyObject* (*call)(PyObject*, PyObject* const*, word);
    int flags;
    const char* about;
};
extern Method method;
Method method{"call", call, 0x80, nullptr};  // METH_FASTCALL: arguments come as an array
}
