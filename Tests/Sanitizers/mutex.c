/* Reports to ThreadSanitizer the parts of Swift's Mutex on Linux that it cannot see. A contended Mutex is locked and
   unlocked in functions of libswiftSynchronization, which is not built for the sanitizer (_lockSlow and _unlockSlow of
   stdlib/public/Synchronization/Mutex/LinuxImpl.swift in the Swift repository). So everything that a Mutex protects would
   be reported as a race. Tests/run loads this before that library (LD_PRELOAD); it does nothing in programs without the
   sanitizer. Needs clang: the functions have Swift's calling convention, with the Mutex in the context register. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

#define SWIFT __attribute__((swiftcall))
#define SELF __attribute__((swift_context)) void *

extern void __tsan_acquire(void *) __attribute__((weak));
extern void __tsan_release(void *) __attribute__((weak));

typedef SWIFT void (*lock_slow)(uint32_t, SELF);
typedef SWIFT void (*unlock_slow)(SELF);

SWIFT void lockSlow(uint32_t thread, SELF mutex) __asm__("$s15Synchronization12_MutexHandleV9_lockSlowyys6UInt32VF");
SWIFT void unlockSlow(SELF mutex) __asm__("$s15Synchronization12_MutexHandleV11_unlockSlowyyF");

// Looked up once, before there are threads, because dlsym(3) takes the loader's lock.
static lock_slow lockThere;
static unlock_slow unlockThere;
__attribute__((constructor)) static void find(void) {
  lockThere = (lock_slow)dlsym(RTLD_NEXT, "$s15Synchronization12_MutexHandleV9_lockSlowyys6UInt32VF");
  unlockThere = (unlock_slow)dlsym(RTLD_NEXT, "$s15Synchronization12_MutexHandleV11_unlockSlowyyF");
}

SWIFT void lockSlow(uint32_t thread, SELF mutex) {
  lockThere(thread, mutex);
  if (__tsan_acquire) __tsan_acquire(mutex);
}

SWIFT void unlockSlow(SELF mutex) {
  if (__tsan_release) __tsan_release(mutex);
  unlockThere(mutex);
}
