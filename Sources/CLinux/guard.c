// A process that outlives ours until it has killed the programs that ours has started: when ours is killed with
// SIGKILL, nothing else would end them. It is a copy of this process without exec, so the library needs no program of
// its own.

#include "CLinux.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __has_feature
#define __has_feature(x) 0
#endif
// Sanitizers keep their records in memory that the guard unmaps.
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#else
#define IS_SANITIZED 0
#endif
#if defined(__clang__)
#define IN_GUARD __attribute__((no_sanitize("address", "thread"), no_builtin, noinline))
#else
#define IN_GUARD __attribute__((noinline))
#endif

// One bit for each process ID that is possible (PID_MAX_LIMIT of the kernel), most of them in pages that are never
// used.
enum { MOST_PROCESSES = 1 << 22, GROUPS_LENGTH = MOST_PROCESSES / 8 };

void *linux_guard_groups(void) {
  void *groups = mmap(NULL, GROUPS_LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return groups == MAP_FAILED ? NULL : groups;
}

void linux_guard_add(void *groups, pid_t group) {
  if (group <= 1 || group >= MOST_PROCESSES) return;
  __atomic_fetch_or((unsigned char *)groups + group / 8, 1 << group % 8, __ATOMIC_SEQ_CST);
}

void linux_guard_remove(void *groups, pid_t group) {
  if (group <= 1 || group >= MOST_PROCESSES) return;
  __atomic_fetch_and((unsigned char *)groups + group / 8, ~(1 << group % 8), __ATOMIC_SEQ_CST);
}

int linux_guard_knows(const void *groups, pid_t group) {
  if (group <= 1 || group >= MOST_PROCESSES) return 0;
  return __atomic_load_n((const unsigned char *)groups + group / 8, __ATOMIC_SEQ_CST) >> group % 8 & 1;
}

// From here on only system calls: other threads' locks are as they were when the copy was made, and libc's memory is
// unmapped.

struct mapping {
  unsigned long start, end, inode;
  int field, is_writable, is_shared;
};

IN_GUARD static void forget(const struct mapping *mapping, void *const *needed) {
  if (!mapping->is_writable || (mapping->inode && !mapping->is_shared)) return;
  for (; *needed; needed++)
    if ((unsigned long)*needed >= mapping->start && (unsigned long)*needed < mapping->end) return;
  syscall(SYS_munmap, mapping->start, mapping->end - mapping->start);
}

// "7f12a000-7f12b000 rw-s 00000000 00:01 1234   /dev/zero (deleted)", proc_pid_maps(5)
IN_GUARD static void take(struct mapping *mapping, char c) {
  int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  if (mapping->field == 0 && c == '-') mapping->field = 1;
  else if (c == ' ' && mapping->field < 6) mapping->field++;
  else if (mapping->field == 0) mapping->start = mapping->start * 16 + (unsigned long)digit;
  else if (mapping->field == 1) mapping->end = mapping->end * 16 + (unsigned long)digit;
  else if (mapping->field == 2) {
    if (c == 'w') mapping->is_writable = 1;
    if (c == 's') mapping->is_shared = 1;
  } else if (mapping->field == 5) mapping->inode = mapping->inode * 10 + (unsigned long)digit;
}

// Unmaps all memory except that of `needed` and that of files. Otherwise each page that our process changes would have
// to be kept twice, and rings that it has freed would stay in memory.
IN_GUARD static void forget_memory(void *const *needed) {
  char text[2048];
  long count, maps = syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return;
  struct mapping mapping;
  int is_new = 1;
  while ((count = syscall(SYS_read, maps, text, sizeof text)) > 0) {
    for (long i = 0; i < count; i++) {
      if (is_new) {
        mapping.start = mapping.end = mapping.inode = 0;
        mapping.field = mapping.is_writable = mapping.is_shared = 0;
        is_new = 0;
      }
      if (text[i] != '\n') {
        take(&mapping, text[i]);
      } else {
        forget(&mapping, needed);
        is_new = 1;
      }
    }
  }
  syscall(SYS_close, maps);
}

IN_GUARD static void guard(int pipe, const unsigned char *groups) {
  syscall(SYS_setsid);
  syscall(SYS_prctl, PR_SET_NAME, "exec-guard", 0, 0, 0);
  syscall(SYS_chdir, "/");
  if (pipe > 0) syscall(SYS_close_range, 0, pipe - 1, 0);
  syscall(SYS_close_range, pipe + 1, ~0U, 0);
  char byte;
  void *needed[] = {&byte, &errno, (void *)groups, NULL};
  if (!IS_SANITIZED) forget_memory(needed);
  long count;
  do count = syscall(SYS_read, pipe, &byte, 1);
  while (count > 0 || (count < 0 && errno == EINTR));
  for (long index = 0; index < GROUPS_LENGTH; index++) {
    for (int bit = 0; groups[index] >> bit; bit++) {
      if (!(groups[index] >> bit & 1)) continue;
      pid_t group = (pid_t)(index * 8 + bit);
      syscall(SYS_kill, -group, SIGKILL);
      syscall(SYS_kill, group, SIGKILL);  // it may have joined another group of its session
    }
  }
  syscall(SYS_exit_group, 0);
}

// The copy sends no signal at its end, so code that waits for children of this process does not see it.
IN_GUARD static long copy(void) { return syscall(SYS_clone, 0, 0, 0, 0, 0); }

int linux_start_guard(void *groups) {
  int ends[2], status = 0;
  if (pipe2(ends, O_CLOEXEC) < 0) return -1;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  errno = 0;
  long child = copy();
  if (child == 0) {
    // Copy twice, so that the guard is init's child and not ours: a program that waits for all its children would wait
    // for it.
    long second = copy();
    if (second == 0) guard(ends[0], groups);
    syscall(SYS_exit_group, second > 0 ? 0 : (int)errno);
  }
  int why = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  close(ends[0]);
  if (child > 0) {
    while (waitpid((pid_t)child, &status, __WCLONE) < 0 && errno == EINTR) {}
    why = WIFEXITED(status) ? WEXITSTATUS(status) : EAGAIN;
    if (why == 0) return ends[1];
  }
  close(ends[1]);
  errno = why;
  return -1;
}

int linux_guard_is_gone(int pipe) {
  struct pollfd one = {.fd = pipe, .events = 0};
  return poll(&one, 1, 0) > 0 && one.revents & (POLLERR | POLLNVAL);
}
