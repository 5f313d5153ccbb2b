#include "CLinux.h"

#include <errno.h>
#include <malloc.h>
#include <sys/mman.h>

static void *wait_at_gate(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

int linux_try_threads(int count) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t threads[count];
  int started = 0, error = 0;
  pthread_mutex_lock(&gate);
  while (started < count && error == 0) {
    error = pthread_create(&threads[started], NULL, wait_at_gate, &gate);
    if (error == 0) started++;
  }
  pthread_mutex_unlock(&gate);
  while (started > 0) pthread_join(threads[--started], NULL);
  return error;
}

size_t linux_thread_size(void) {
  pthread_attr_t standard;
  size_t stack = 8 << 20, guard = 4096;
  if (pthread_getattr_default_np(&standard) != 0) return stack + guard;
  pthread_attr_getstacksize(&standard, &stack);
  pthread_attr_getguardsize(&standard, &guard);
  pthread_attr_destroy(&standard);
  return stack + guard;
}

int linux_try_memory(size_t length) {
  void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return errno;
  munmap(memory, length);
  return 0;
}

void linux_use_one_arena(void) { mallopt(M_ARENA_MAX, 1); }

void linux_trim_heap(void) { malloc_trim(0); }
