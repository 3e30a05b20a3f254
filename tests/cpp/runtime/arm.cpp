// Runs one kernel on the processor that it was compiled for: `arm FILE` reads what it is called with, and writes
// there what it made.
//
// The file has the numbers of loads, of stores and of fields; then for each tensor how many bytes it has; then the
// fields; then the tensors.
#include <stdio.h>
#include <stdlib.h>

extern "C" void KERNEL(const void* fields);

// Scratch memory ends with the process. Without this function the library of C++ would have to be built first.
extern "C" int __cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }

static FILE* file;

static void take(void* to, size_t bytes) {
    if (fread(to, 1, bytes, file) != bytes) exit(2);
}

int main(int, char** arguments) {
    file = fopen(arguments[1], "r+b");
    if (!file) return 2;
    long counts[3];
    take(counts, sizeof counts);
    const long tensors = counts[0] + counts[1];
    long* const bytes = static_cast<long*>(malloc(sizeof(long) * tensors));
    char** const fields = static_cast<char**>(malloc(sizeof(char*) * (tensors + counts[2])));
    take(bytes, sizeof(long) * tensors);
    take(fields + tensors, sizeof(long) * counts[2]);
    long stored = 0;
    for (long one = 0; one < tensors; ++one) {
        fields[one] = static_cast<char*>(malloc(bytes[one]));
        if (one == counts[0]) stored = ftell(file);
        take(fields[one], bytes[one]);
    }
    KERNEL(fields);
    fseek(file, stored, SEEK_SET);
    for (long one = counts[0]; one < tensors; ++one) fwrite(fields[one], 1, bytes[one], file);
    return fclose(file);
}
