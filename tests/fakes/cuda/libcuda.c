/* A driver's library without a GPU: its memory is that of the process, shared with others by IPC handles.

   As on a GPU, what a process holds is gone with it, and a handle of a dead process cannot be opened. FAKE_GPU_FREE:
   bytes that are free at first. FAKE_GPU_FAULT: the name of a call that fails with error 999.
*/
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { unsigned char bytes[64]; } Handle;
struct memory { void *address; size_t size; int file; };
static struct memory held[64];
static size_t used;

static int fault(const char *name) {
    const char *asked = getenv("FAKE_GPU_FAULT");
    return asked && !strcmp(asked, name) ? 999 : 0;
}

int cuInit(unsigned flags) { (void)flags; return fault("cuInit"); }
int cuDeviceGet(int *device, int number) { *device = number; return fault("cuDeviceGet"); }
int cuDevicePrimaryCtxRetain(void **context, int device) { (void)device; *context = held; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuStreamSynchronize(void *stream) { (void)stream; return fault("cuStreamSynchronize"); }

int cuDeviceGetUuid(unsigned char *uuid, int device) {
    const char *visible = getenv("FAKE_GPU_UUID");
    memset(uuid, visible ? visible[0] : 'g', 16);
    uuid[15] = (unsigned char)device;
    return 0;
}

int cuMemGetInfo_v2(size_t *free_, size_t *total) {
    const char *bytes = getenv("FAKE_GPU_FREE");
    *total = bytes ? strtoull(bytes, NULL, 10) : (size_t)8 << 30;
    *free_ = *total - used;
    return 0;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    int number = 0;
    while (number < 64 && held[number].address) number++;
    if (number == 64 || fault("cuMemAlloc_v2")) return 2;
    int file = memfd_create("gpu", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size)) return 2;
    void *there = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (there == MAP_FAILED) return 2;
    held[number] = (struct memory){there, size, file};
    used += size;
    *address = (uint64_t)there;
    return 0;
}

int cuMemFree_v2(uint64_t address) {
    for (int number = 0; number < 64; number++)
        if (held[number].address == (void *)address) {
            munmap(held[number].address, held[number].size);
            close(held[number].file);
            used -= held[number].size;
            held[number].address = NULL;
            return 0;
        }
    return 1;
}

int cuIpcGetMemHandle(Handle *handle, uint64_t address) {
    for (int number = 0; number < 64; number++)
        if (held[number].address == (void *)address) {
            memset(handle, 0, sizeof *handle);
            snprintf((char *)handle->bytes, 64, "/proc/%d/fd/%d", getpid(), held[number].file);
            return fault("cuIpcGetMemHandle");
        }
    return 1;
}

int cuIpcOpenMemHandle_v2(uint64_t *address, Handle handle, unsigned flags) {
    (void)flags;
    int file = open((char *)handle.bytes, O_RDWR | O_CLOEXEC);
    if (file < 0 || fault("cuIpcOpenMemHandle_v2")) return 201;
    off_t size = lseek(file, 0, SEEK_END);
    void *there = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (there == MAP_FAILED) return 201;
    *address = (uint64_t)there;
    return 0;
}

int cuIpcCloseMemHandle(uint64_t address) { (void)address; return 0; }

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
    (void)stream;
    memcpy((void *)to, (void *)from, size);
    return fault("cuMemcpyAsync");
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
    memcpy(to, (void *)from, size);
    return fault("cuMemcpyDtoH_v2");
}

int cuMemAllocHost_v2(void **address, size_t size) { *address = malloc(size); return *address ? 0 : 2; }
